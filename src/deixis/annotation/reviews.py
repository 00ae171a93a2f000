"""For reviewers: the review queue, an image with its history, manual fixes, and the audit of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from sqlalchemy import Connection, exists, insert, select

from deixis.annotation import schema
from deixis.annotation.image_store import (
    SUMMARY,
    all_fixes,
    decode_document,
    decode_question,
    load_document,
    load_state,
    lock_image,
    summary,
    valid_judgments,
)
from deixis.annotation.merging import equal_boxes, merge_chains
from deixis.annotation.trust import Standing
from deixis.annotation.workflow import ImageState, image_state
from deixis.annotation.workflow_records import (
    MOST_MENTIONS,
    REVIEW,
    AcceptFix,
    BoxesFix,
    ChainsFix,
    Document,
    Fix,
    MentionsFix,
    Question,
    Settings,
    by_id,
    check_box,
)
from deixis.corpus import TYPES, Box, Image
from deixis.errors import DeixisError

#: Images whose part of the log is read at once.
BLOCK = 500


class Review(msgspec.Struct, frozen=True):
    """Something for a reviewer to look at. `AcceptFix` refers to it by `key`; `summary` names the phrases and why."""

    image: str
    task: str
    key: str
    reason: str
    mentions: tuple[str, ...]
    summary: str


class ChainView(msgspec.Struct, frozen=True):
    """A chain and its boxes so far. `verdict` is `box`, `scene`, `no box`, or empty if the chain is not settled."""

    mentions: tuple[str, ...]
    boxes: tuple[Box, ...]
    verdict: str


class Event(msgspec.Struct, frozen=True):
    """An entry in the history of an image: a judgment (`what` is its key) or a fix."""

    created: float
    worker: str
    what: str
    content: msgspec.Raw
    comment: str
    void: bool


class EqualBoxes(msgspec.Struct, frozen=True):
    """Two chains (indexes) with the same boxes: probably one thing. `merged`: the export makes one chain of them."""

    first: int
    second: int
    merged: bool


class ImageView(msgspec.Struct, frozen=True):
    """An image with its annotations and history. A fix must state the `version` it was made for."""

    document: Document
    version: int
    finished: bool
    chains: tuple[ChainView, ...]
    reviews: tuple[Review, ...]
    equal_boxes: tuple[EqualBoxes, ...]
    history: tuple[Event, ...]


def review_queue(connection: Connection, limit: int, titles: Mapping[str, str]) -> list[Review]:
    """What waits for a reviewer; `titles` are those of the tasks."""
    items, images, barred = schema.items, schema.images, schema.barred
    people, standings = schema.workers, schema.standings
    wanted = select(images.c.document, items.c.question).join(images, images.c.id == items.c.image_id)
    rows = list(connection.execute(wanted.where(items.c.task == REVIEW).order_by(items.c.id).limit(limit)))
    reviews = [_review(decode_document(row.document).image, decode_question(row.question), titles) for row in rows]
    # Questions for which no worker is left: all have answered it, given it back, or lost the task.
    is_barred = (
        exists().where(barred.c.item_id == items.c.id, barred.c.worker_id == people.c.id).correlate(items, people)
    )
    shut_out = standings.c.standing.in_((Standing.FAILED, Standing.SUSPENDED))
    lost_task = exists().where(standings.c.worker_id == people.c.id, standings.c.task == items.c.task, shut_out)
    worker_left = (
        exists().where(people.c.role == "worker", ~is_barred, ~lost_task.correlate(items, people)).correlate(items)
    )
    # Only questions with a barred worker, or of a task that somebody lost, need this check.
    doubtful = items.c.id.in_(select(barred.c.item_id)) | items.c.task.in_(select(standings.c.task).where(shut_out))
    unanswerable = wanted.where(items.c.task != REVIEW, doubtful, ~worker_left)
    rows = list(connection.execute(unanswerable.order_by(items.c.id).limit(limit)))
    for row in rows:
        question = msgspec.structs.replace(decode_question(row.question), reason="no worker is left to ask")
        reviews.append(_review(decode_document(row.document).image, question, titles))
    return reviews[:limit]


def _review(image: Image, question: Question, titles: Mapping[str, str]) -> Review:
    phrases = ", ".join(f"“{_phrase(image, mention)}”" for mention in question.mentions)
    is_comment = question.key.startswith(f"{REVIEW} comment ")
    reason = f"a worker comments: {question.reason}" if is_comment else question.reason
    subject = " ".join(part for part in (titles.get(question.task), phrases) if part)
    summary = f"{subject}: {reason}" if subject else reason
    return Review(image.id, question.task, question.key, question.reason, question.mentions, summary)


def _phrase(image: Image, mention: str) -> str:
    """The words of a mention, given by its id."""
    caption, _, span = mention.partition(":")
    start, _, end = span.partition("-")
    return " ".join(image.captions[int(caption)].tokens[int(start) : int(end)])


def inspect_image(connection: Connection, name: str, settings: Settings, titles: Mapping[str, str]) -> ImageView:
    image_id = image_number(connection, name)
    version = connection.execute(select(schema.images.c.version).where(schema.images.c.id == image_id)).scalar_one()
    document, state = load_state(connection, image_id, settings)
    if state.mentions != document.mentions:
        document = msgspec.structs.replace(document, mentions=state.mentions)
    chains = tuple(
        ChainView(tuple(mention.id for mention in chain.mentions), chain.boxes, chain.verdict or "")
        for chain in state.chains
    )
    reviews = tuple(
        _review(document.image, question, titles) for question in state.questions if question.task == REVIEW
    )
    history = tuple(_history(connection, image_id))
    return ImageView(document, version, state.finished, chains, reviews, _equal_boxes(state), history)


def _equal_boxes(state: ImageState) -> tuple[EqualBoxes, ...]:
    boxes = [chain.boxes for chain in state.chains]
    types = [frozenset(type_ for mention in chain.mentions for type_ in mention.types) for chain in state.chains]
    groups = [set(parts) for parts, _ in merge_chains(boxes, types).chains]
    return tuple(
        EqualBoxes(first, second, any({first, second} <= group for group in groups))
        for first, second in equal_boxes(boxes)
    )


def image_record(connection: Connection, name: str) -> Image:
    return load_document(connection, image_number(connection, name)).image


def _history(connection: Connection, image_id: int) -> list[Event]:
    log, fixes, people = schema.judgments, schema.fixes, schema.workers
    judged = connection.execute(
        select(log, people.c.name, schema.voided.c.judgment_id.label("void"))
        .join(people, people.c.id == log.c.worker_id)
        .outerjoin(schema.voided, schema.voided.c.judgment_id == log.c.id)
        .where(log.c.image_id == image_id)
    )
    events = [
        Event(row.created, row.name, row.key, msgspec.Raw(row.answer), row.comment, row.void is not None)
        for row in judged
    ]
    fixed = connection.execute(
        select(fixes, people.c.name).join(people, people.c.id == fixes.c.worker_id).where(fixes.c.image_id == image_id)
    )
    events += [Event(row.created, row.name, "fix", msgspec.Raw(row.fix), row.comment, False) for row in fixed]
    return sorted(events, key=lambda event: event.created)


def image_number(connection: Connection, name: str) -> int:
    image_id = connection.execute(select(schema.images.c.id).where(schema.images.c.name == name)).scalar()
    if image_id is None:
        raise DeixisError(f"the project has no image {name!r}")
    return int(image_id)


def add_fix(
    connection: Connection,
    reviewer: int,
    name: str,
    fix: Fix,
    version: int,
    comment: str,
    settings: Settings,
    now: float,
) -> int:
    """Check and write a fix. Returns the image's id. The image is locked; its items are not updated yet."""
    image_id = image_number(connection, name)
    new_version = lock_image(connection, image_id)
    if new_version != version + 1:
        raise DeixisError(
            f"image {name}: has changed since you opened it (version {new_version - 1}, not {version}); open it again"
        )
    document, state = load_state(connection, image_id, settings)
    fix = _check_fix(fix, document, state, name)
    values = {"image_id": image_id, "worker_id": reviewer, "fix": msgspec.json.encode(fix), "created": now}
    connection.execute(insert(schema.fixes).values(comment=comment.strip(), **values))
    return image_id


def _check_fix(fix: Fix, document: Document, state: ImageState, name: str) -> Fix:
    image, known = document.image, by_id(state.mentions)
    match fix:
        case MentionsFix(mentions):
            if len(mentions) > MOST_MENTIONS:
                raise DeixisError(f"image {name}: more than {MOST_MENTIONS:,} phrases")
            for mention in mentions:
                tokens = image.captions[mention.caption].tokens if mention.caption < len(image.captions) else ()
                if not 0 <= mention.start < mention.end <= len(tokens):
                    raise DeixisError(f"image {name}: {mention.id} is outside its caption")
                if mention.text != " ".join(tokens[mention.start : mention.end]):
                    raise DeixisError(f"image {name}: {mention.id} does not read {mention.text!r}")
                if not mention.types or not set(mention.types) <= set(TYPES):
                    raise DeixisError(f"image {name}: {mention.id} needs types from {', '.join(TYPES)}")
            if len(by_id(mentions)) != len(mentions):
                raise DeixisError(f"image {name}: a mention occurs twice")
        case ChainsFix(chains):
            members = [mention for chain in chains for mention in chain]
            if len(set(members)) != len(members) or not known.keys() >= set(members):
                raise DeixisError(f"image {name}: chains may only contain mentions of the image, each at most once")
        case BoxesFix(mention_id, boxes, verdict):
            if mention_id not in known:
                raise DeixisError(f"image {name}: there is no mention {mention_id!r}")
            if bool(boxes) != (verdict == "box"):
                raise DeixisError(
                    f"image {name}: the verdict must be “box” if there are boxes, and something else if there are none"
                )
            cut = tuple(check_box(box, image.width, image.height) for box in boxes)
            return BoxesFix(mention_id, cut, verdict)
        case AcceptFix(key):
            if not key.startswith(f"{REVIEW} "):
                raise DeixisError(f"image {name}: {key!r} is not the key of a review")
    return fix


def image_states(
    connection: Connection, settings: Settings
) -> Iterator[tuple[int, Document, ImageState, dict[str, int | bool]]]:
    """For every image: its id, document, the state rebuilt from the log, and the summary stored in the tables."""
    images = schema.images
    columns = [images.c[name] for name in SUMMARY]
    last = 0
    while True:
        query = select(images.c.id, images.c.document, *columns)
        rows = list(connection.execute(query.where(images.c.id > last).order_by(images.c.id).limit(BLOCK)))
        if not rows:
            return
        last = rows[-1].id
        judgments = valid_judgments(connection, rows[0].id, last)
        fixes = all_fixes(connection, rows[0].id, last)
        for row in rows:
            try:
                document = decode_document(row.document)
                state = image_state(document, judgments.get(row.id, []), fixes.get(row.id, []), settings)
            except schema.DAMAGE as fault:
                raise ValueError(f"image {row.id}: {type(fault).__name__}: {fault}") from fault
            stored = {column.name: getattr(row, column.name) for column in columns}
            yield row.id, document, state, stored


def _without_reason(question: Question) -> Question:
    """Its words may have been those of an earlier version of Deixis."""
    return msgspec.structs.replace(question, reason="")


def differences(connection: Connection, settings: Settings) -> list[str]:
    """Differences between the derived tables and the log. Images marked as stale are skipped."""
    items = schema.items
    problems = schema.integrity_faults(connection)
    stale = set(connection.execute(select(schema.stale.c.image_id)).scalars())
    for image_id, document, state, stored in image_states(connection, settings):
        if image_id in stale:
            continue
        name = document.image.id
        if stored != summary(state):
            problems.append(f"image {name}: the table has {stored}, the log gives {summary(state)}")
        rows = connection.execute(select(items.c.key, items.c.question).where(items.c.image_id == image_id))
        present = {row.key: _without_reason(decode_question(row.question)) for row in rows}
        wanted = {question.key: _without_reason(question) for question in state.questions}
        if present != wanted:
            problems.append(f"image {name}: open questions differ: {sorted(present.keys() ^ wanted.keys())}")
    return problems
