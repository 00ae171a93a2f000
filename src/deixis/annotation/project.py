"""Making a project out of a corpus: mentions, the first questions, and the questions whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from random import Random

import msgspec
from sqlalchemy import Connection, Engine, insert, inspect

from deixis.annotation import schema
from deixis.annotation.image_store import summary
from deixis.annotation.known import KnownQuestion, known_questions
from deixis.annotation.mentions import Start, documents
from deixis.annotation.workflow import image_state
from deixis.annotation.workflow_records import Document, Settings
from deixis.corpus import Corpus
from deixis.corpus.pictures import Pictures
from deixis.errors import DeixisError, InputError
from deixis.text import Chunker, EntityTypes
from deixis.vision.reading import read_size

#: Images written in one go.
BLOCK = 1000
#: Questions with known answers a task, unless told otherwise.
KNOWN_EACH = 400


def create_project(
    where: str | Path,
    corpus: Corpus,
    *,
    start: Start = "captions",
    known: Corpus | None = None,
    known_each: int = KNOWN_EACH,
    settings: Settings | None = None,
    chance: Random | None = None,
    places: dict[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    durable: bool = True,
) -> None:
    """Make a project; all of it is there afterwards, or nothing.

    Args:
        where: a file for SQLite, or a database URL.
        start: what to take from the corpus: captions alone, its mentions, its chains too, or its boxes too (which the
            workers then verify).
        known: annotated images from which questions with known answers are made; without, all workers are trusted.
        places: paths to be remembered, such as those of the pictures.
    """
    settings = settings or Settings()
    if not len(corpus):
        raise DeixisError("a project needs at least one image")
    engine = schema.open_engine(where, durable=durable)
    file = None if "://" in str(where) or Path(where).exists() else Path(where)
    try:
        if schema.is_project(engine, where):
            raise InputError(schema.shown(where), "holds an annotation project already")
        found = _sized(documents(corpus, start, Chunker.load(), EntityTypes.load()), corpus.pictures)
        with schema.writing(engine) as connection:
            schema.create_tables(connection, where)
            schema.set_value(connection, "settings", msgspec.json.encode(settings).decode())
            for key, value in {"name": corpus.name, "start": start, **(places or {})}.items():
                schema.set_value(connection, key, value)
            _write_images(connection, found, settings, len(corpus), progress)
            if known is not None:
                write_known(connection, known, known_each, settings, chance or Random(0))
    except BaseException:
        if file is not None:
            _remove_empty(engine, file)
        raise
    finally:
        engine.dispose()


def _sized(found: Iterable[Document], pictures: Pictures | None) -> Iterator[Document]:
    """Documents with their pictures' sizes where the corpus does not tell them: boxes are cut at the edges."""
    for document in found:
        image = document.image
        if pictures is not None and not (image.width and image.height):
            # A picture that cannot be read is told when it is to be shown.
            with suppress(InputError):
                width, height = read_size(pictures.read(image), name=image.file or image.id)
                image = msgspec.structs.replace(image, width=width, height=height)
        yield msgspec.structs.replace(document, image=image)


def _remove_empty(engine: Engine, file: Path) -> None:
    """Take away the file of a project that could not be made, unless somebody made one there in the meantime."""
    if file.is_file() and inspect(engine).get_table_names():
        return
    engine.dispose()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def _write_images(
    connection: Connection,
    found: Iterable[Document],
    settings: Settings,
    total: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    numbers = count(1)
    remaining = iter(found)
    while block := list(islice(remaining, BLOCK)):
        image_rows, item_rows = [], []
        for document in block:
            number = next(numbers)
            state = image_state(document, (), (), settings)
            row = {"id": number, "name": document.image.id, "document": msgspec.json.encode(document)}
            image_rows.append(row | {"version": 0} | summary(state))
            for question in state.questions:
                encoded = msgspec.json.encode(question)
                item_rows.append({"image_id": number, "task": question.task, "key": question.key, "question": encoded})
        connection.execute(insert(schema.images), image_rows)
        if item_rows:
            connection.execute(insert(schema.items), item_rows)
        if progress is not None:
            progress(number, total)


def write_known(connection: Connection, corpus: Corpus, each: int, settings: Settings, chance: Random) -> None:
    """Add questions with known answers: enough for every attempt at the test, the rest hidden among the work."""
    tests = settings.test_questions * settings.test_attempts
    for task, questions in known_questions(corpus, each, chance, settings.skip_requirement).items():
        if len(questions) < tests + settings.first_items:
            raise DeixisError(
                f"the annotated corpus gives {len(questions)} questions for {task}; "
                f"the test and the first items take {tests + settings.first_items}"
            )
        rows = [_known_row(question, number < tests) for number, question in enumerate(questions)]
        connection.execute(insert(schema.known), rows)


def _known_row(question: KnownQuestion, test: bool) -> dict[str, object]:
    return {
        "task": question.question.task,
        "test": test,
        "document": msgspec.json.encode(question.document),
        "question": msgspec.json.encode(question.question),
        "truth": msgspec.json.encode(question.truth),
    }
