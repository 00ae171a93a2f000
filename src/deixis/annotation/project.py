"""Creates a project from a corpus (mentions, first questions, verification questions), and finds its pictures again.

Also its settings: their meaning, and changing them after the project was created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Engine, insert, inspect, select

from deixis.annotation import schema
from deixis.annotation.image_store import summary
from deixis.annotation.known import KnownQuestion, known_questions
from deixis.annotation.mentions import Start, documents
from deixis.annotation.workflow import image_state
from deixis.annotation.workflow_records import MOST_MENTIONS, Document, Settings
from deixis.corpus import Corpus, open_corpus
from deixis.corpus.pictures import Pictures
from deixis.errors import DeixisError, InputError
from deixis.text.chunker import Chunker
from deixis.text.entity_types import EntityTypes
from deixis.vision.reading import read_size

#: Images written at once.
BLOCK = 1000
#: Default number of verification questions per task.
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
) -> dict[str, int]:
    """Create a project, completely or not at all. Returns the number of verification questions per task.

    Args:
        where: a file for SQLite, or a database URL.
        start: what to take over from the corpus: only captions, or also mentions, also chains, or also boxes (which the
            workers then verify).
        known: annotated images from which verification questions are made. Without it, all workers are trusted.
        known_each: number of verification questions per task.
        places: paths to store with the project, such as that of the pictures.
    """
    settings = settings or Settings()
    if not len(corpus):
        raise DeixisError("a project needs at least one image")
    engine = schema.open_engine(where, durable=durable)
    file = None if "://" in str(where) or Path(where).exists() else Path(where)
    try:
        if schema.is_project(engine, where):
            raise InputError(schema.shown(where), "already holds an annotation project")
        sized = _with_sizes(documents(corpus, start, Chunker.load(), EntityTypes.load()), corpus.pictures)
        with schema.writing(engine) as connection:
            schema.create_tables(connection, where)
            store_settings(connection, settings)
            for key, value in {"name": corpus.name, "start": start, **(places or {})}.items():
                schema.set_value(connection, key, value)
            _write_images(connection, sized, settings, len(corpus), progress)
            if known is not None:
                return write_known(connection, known, known_each, settings, chance or Random(0))
            return {}
    except BaseException:
        if file is not None:
            _remove_empty(engine, file)
        raise
    finally:
        engine.dispose()


def _with_sizes(unsized: Iterable[Document], pictures: Pictures | None) -> Iterator[Document]:
    """Documents with picture sizes, read from the files if the corpus lacks them. Boxes are clipped to the picture."""
    for document in unsized:
        image = document.image
        if pictures is not None and not (image.width and image.height):
            # A picture that cannot be read is reported when it is shown.
            with suppress(InputError):
                width, height = read_size(pictures.read(image), name=image.file or image.id)
                image = msgspec.structs.replace(image, width=width, height=height)
        yield msgspec.structs.replace(document, image=image)


def _remove_empty(engine: Engine, file: Path) -> None:
    """Delete the file of a project that could not be created, unless another process created one there."""
    if file.is_file() and inspect(engine).get_table_names():
        return
    engine.dispose()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)


def _write_images(
    connection: Connection,
    project_documents: Iterable[Document],
    settings: Settings,
    total: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    image_ids = count(1)
    remaining = iter(project_documents)
    while block := list(islice(remaining, BLOCK)):
        image_rows, item_rows = [], []
        for document in block:
            image_id = next(image_ids)
            if len(document.mentions) > MOST_MENTIONS:
                raise DeixisError(
                    f"image {document.image.id}: its captions have {len(document.mentions):,} phrases to annotate, "
                    f"more than {MOST_MENTIONS:,}"
                )
            state = image_state(document, (), (), settings)
            row = {"id": image_id, "name": document.image.id, "document": msgspec.json.encode(document)}
            image_rows.append(row | {"version": 0} | summary(state))
            for question in state.questions:
                encoded = msgspec.json.encode(question)
                item_rows.append(
                    {"image_id": image_id, "task": question.task, "key": question.key, "question": encoded}
                )
        connection.execute(insert(schema.images), image_rows)
        if item_rows:
            connection.execute(insert(schema.items), item_rows)
        if progress is not None:
            progress(image_id, total)


def write_known(
    connection: Connection, corpus: Corpus, per_task: int, settings: Settings, chance: Random
) -> dict[str, int]:
    """Add verification questions: enough for every test attempt, the rest to be hidden among the work.

    Returns their number per task.
    """
    tests = settings.test_questions * settings.test_attempts
    by_task = known_questions(corpus, per_task, chance, settings.skip_requirement, link_together=settings.link_together)
    for task, questions in by_task.items():
        if len(questions) < tests + settings.first_items:
            raise DeixisError(
                f"the annotated corpus gives {len(questions)} verification questions for {task}; "
                f"the test and the first items need {tests + settings.first_items}"
            )
        rows = [_known_row(question, index < tests) for index, question in enumerate(questions)]
        connection.execute(insert(schema.known), rows)
    return {task: len(questions) for task, questions in by_task.items()}


def _known_row(question: KnownQuestion, test: bool) -> dict[str, object]:
    return {
        "task": question.question.task,
        "test": test,
        "document": msgspec.json.encode(question.document),
        "question": msgspec.json.encode(question.question),
        "truth": msgspec.json.encode(question.truth),
        "evidence": msgspec.json.encode(question.evidence),
    }


def project_corpus(engine: Engine, *, known: bool = False) -> Corpus:
    """The corpus of the images to annotate, or with `known` the corpus of the verification questions."""
    with schema.reading(engine) as connection:
        corpus = schema.get_value(connection, "known_corpus" if known else "corpus")
        elsewhere = None if known else schema.get_value(connection, "pictures")
    if not corpus:
        raise DeixisError("the project does not record where its pictures are")
    return open_corpus(corpus, pictures=elsewhere or None)


def project_pictures(engine: Engine, *, known: bool = False) -> Pictures:
    """The pictures of `project_corpus`."""
    corpus = project_corpus(engine, known=known)
    if corpus.pictures is None:
        raise DeixisError(f"{corpus.name or 'the corpus'}: has no pictures")
    return corpus.pictures


#: No setting has a larger number; infinity could not be read again from JSON.
LARGEST = 10**9
#: Settings on which the questions of an image depend.
WORKFLOW = frozenset({"solo", "skip_requirement", "link_together", "cycle_limit", "bad_box_limit", "box_limit"})


class Setting(NamedTuple):
    """A setting with its default, its value in a project, and what it means."""

    name: str
    default: Any
    value: Any
    meaning: str


def describe_settings(settings: Settings | None = None) -> list[Setting]:
    """All settings, with the values of a project."""
    properties = msgspec.json.schema_components([Settings])[1]["Settings"]["properties"]
    defaults = msgspec.to_builtins(Settings())
    values = msgspec.to_builtins(settings or Settings())
    return [Setting(name, defaults[name], values[name], properties[name]["description"]) for name in defaults]


def load_settings(connection: Connection) -> Settings:
    return msgspec.json.decode(schema.get_value(connection, "settings") or "{}", type=Settings)


def store_settings(connection: Connection, settings: Settings) -> None:
    schema.set_value(connection, "settings", msgspec.json.encode(checked_settings(settings)).decode())


def checked_settings(settings: Settings) -> Settings:
    """The settings themselves; a `DeixisError` where they could not be read again, or a number is beyond all reason."""
    for name, value in msgspec.to_builtins(settings).items():
        if isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise DeixisError(f"the settings do not fit: {name} is {str(value)[:40]}, more than {LARGEST:,}")
    return settings


def changed_settings(settings: Settings, changes: Mapping[str, str]) -> Settings:
    """Settings with some values replaced. Values are as in a TOML file; text needs no quotes.

    >>> changed_settings(Settings(), {"first_items": "10", "address": "https://work.example.org"}).first_items
    10
    """
    fields = msgspec.to_builtins(settings)
    for name, value in changes.items():
        if name not in fields:
            raise DeixisError(f"{name!r} is not a setting; `deixis annotate settings` lists them")
        try:
            fields[name] = msgspec.toml.decode(f"value = {value}")["value"]
        except (msgspec.DecodeError, ValueError, RecursionError):
            fields[name] = value
    try:
        return checked_settings(msgspec.convert(fields, Settings))
    except msgspec.ValidationError as fault:
        raise DeixisError(f"the settings do not fit: {fault}") from None


def change_settings(connection: Connection, changes: Mapping[str, str]) -> Settings:
    """Change settings of a project. If its questions may change, all images are marked to be computed again."""
    # The lock on the row keeps two changes from overwriting each other.
    project, stale, images = schema.project, schema.stale, schema.images
    connection.execute(select(project.c.value).where(project.c.key == "settings").with_for_update())
    settings = changed_settings(load_settings(connection), changes)
    store_settings(connection, settings)
    if WORKFLOW.isdisjoint(changes):
        return settings
    unmarked = select(images.c.id).where(images.c.id.not_in(select(stale.c.image_id)))
    connection.execute(insert(stale).from_select(["image_id"], unmarked))
    return settings
