"""What a reviewer works with: the queue, an image with its history, fixes by hand, and the audit of the tables."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from sqlalchemy import Connection, exists, insert, select

from deixis.annotation import schema
from deixis.annotation.image_store import (
    all_fixes,
    decode_document,
    decode_question,
    load_state,
    summary,
    take_image,
    valid_judgments,
)
from deixis.annotation.trust import Standing
from deixis.annotation.workflow import ImageState, image_state
from deixis.annotation.workflow_records import (
    REVIEW,
    AcceptFix,
    BoxesFix,
    ChainsFix,
    Document,
    Fix,
    MentionsFix,
    Settings,
    by_id,
    check_box,
)
from deixis.corpus import TYPES, Box
from deixis.errors import DeixisError

#: Images derived from one reading of the log.
BLOCK = 500


class Review(msgspec.Struct, frozen=True):
    """Something a reviewer should look at; `key` is what `AcceptFix` names."""

    image: str
    task: str
    key: str
    reason: str
    mentions: tuple[str, ...]


class ChainView(msgspec.Struct, frozen=True):
    """A chain as it stands. `verdict` is `box`, `scene`, `no box`, or empty while workers are at it."""

    mentions: tuple[str, ...]
    boxes: tuple[Box, ...]
    verdict: str


class Event(msgspec.Struct, frozen=True):
    """One thing that was done to an image: a judgment (`what` is its key) or a fix."""

    created: float
    worker: str
    what: str
    content: msgspec.Raw
    comment: str
    void: bool


class ImageView(msgspec.Struct, frozen=True):
    """All that is known of an image; `version` is what a fix must name."""

    document: Document
    version: int
    finished: bool
    chains: tuple[ChainView, ...]
    reviews: tuple[Review, ...]
    history: tuple[Event, ...]


def review_queue(connection: Connection, limit: int) -> list[Review]:
    items, images, barred = schema.items, schema.images, schema.barred
    people, standings = schema.workers, schema.standings
    wanted = select(images.c.name, items.c.question).join(images, images.c.id == items.c.image_id)
    rows = list(connection.execute(wanted.where(items.c.task == REVIEW).order_by(items.c.id).limit(limit)))
    reviews = [_review(row.name, row.question) for row in rows]
    # Questions that every worker has answered already, or given back, or lost the task of: nobody is left to ask.
    asked = exists().where(barred.c.item_id == items.c.id, barred.c.worker_id == people.c.id).correlate(items, people)
    out = standings.c.standing.in_((Standing.FAILED, Standing.SUSPENDED))
    lost = exists().where(standings.c.worker_id == people.c.id, standings.c.task == items.c.task, out)
    left = exists().where(people.c.role == "worker", ~asked, ~lost.correlate(items, people)).correlate(items)
    # Few questions need that look: those that somebody is barred from, and those of tasks that somebody lost.
    doubtful = items.c.id.in_(select(barred.c.item_id)) | items.c.task.in_(select(standings.c.task).where(out))
    starved = wanted.where(items.c.task != REVIEW, doubtful, ~left)
    rows = list(connection.execute(starved.order_by(items.c.id).limit(limit)))
    reviews += [_review(row.name, row.question, "no worker is left to ask") for row in rows]
    return reviews[:limit]


def _review(image: str, encoded: bytes, reason: str = "") -> Review:
    question = decode_question(encoded)
    return Review(image, question.task, question.key, reason or question.reason, question.mentions)


def inspect_image(connection: Connection, name: str, settings: Settings) -> ImageView:
    number = image_number(connection, name)
    version = connection.execute(select(schema.images.c.version).where(schema.images.c.id == number)).scalar_one()
    document, state = load_state(connection, number, settings)
    if state.mentions != document.mentions:
        document = msgspec.structs.replace(document, mentions=state.mentions)
    chains = tuple(
        ChainView(tuple(mention.id for mention in chain.mentions), chain.boxes, chain.verdict or "")
        for chain in state.chains
    )
    reviews = tuple(
        Review(name, question.task, question.key, question.reason, question.mentions)
        for question in state.questions
        if question.task == REVIEW
    )
    return ImageView(document, version, state.finished, chains, reviews, tuple(_history(connection, number)))


def _history(connection: Connection, number: int) -> list[Event]:
    log, fixes, people = schema.judgments, schema.fixes, schema.workers
    judged = connection.execute(
        select(log, people.c.name, schema.voided.c.decision_id)
        .join(people, people.c.id == log.c.worker_id)
        .outerjoin(schema.voided, schema.voided.c.judgment_id == log.c.id)
        .where(log.c.image_id == number)
    )
    events = [
        Event(row.created, row.name, row.key, msgspec.Raw(row.answer), row.comment, row.decision_id is not None)
        for row in judged
    ]
    fixed = connection.execute(
        select(fixes, people.c.name).join(people, people.c.id == fixes.c.worker_id).where(fixes.c.image_id == number)
    )
    events += [Event(row.created, row.name, "fix", msgspec.Raw(row.fix), row.comment, False) for row in fixed]
    return sorted(events, key=lambda event: event.created)


def image_number(connection: Connection, name: str) -> int:
    number = connection.execute(select(schema.images.c.id).where(schema.images.c.name == name)).scalar()
    if number is None:
        raise DeixisError(f"the project has no image {name!r}")
    return int(number)


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
    """Write a fix that fits the image; returns the image's number. The image is held, its items are not yet renewed."""
    number = image_number(connection, name)
    held = take_image(connection, number)
    if held != version + 1:
        raise DeixisError(f"image {name}: changed since you looked at it (version {held - 1}, not {version})")
    document, state = load_state(connection, number, settings)
    fix = _checked(fix, document, state, name)
    values = {"image_id": number, "worker_id": reviewer, "fix": msgspec.json.encode(fix), "created": now}
    connection.execute(insert(schema.fixes).values(comment=comment.strip(), **values))
    return number


def _checked(fix: Fix, document: Document, state: ImageState, name: str) -> Fix:
    image, known = document.image, by_id(state.mentions)
    match fix:
        case MentionsFix(mentions):
            for mention in mentions:
                tokens = image.captions[mention.caption].tokens if mention.caption < len(image.captions) else ()
                if not 0 <= mention.start < mention.end <= len(tokens):
                    raise DeixisError(f"image {name}: {mention.id} is outside its caption")
                if mention.text != " ".join(tokens[mention.start : mention.end]):
                    raise DeixisError(f"image {name}: {mention.id} does not read {mention.text!r}")
                if not mention.types or not set(mention.types) <= set(TYPES):
                    raise DeixisError(f"image {name}: {mention.id} needs types out of {', '.join(TYPES)}")
            if len(by_id(mentions)) != len(mentions):
                raise DeixisError(f"image {name}: a mention is given twice")
        case ChainsFix(chains):
            held = [mention for chain in chains for mention in chain]
            if len(set(held)) != len(held) or not known.keys() >= set(held):
                raise DeixisError(f"image {name}: the chains must hold mentions of the image, each at most once")
        case BoxesFix(mention_id, boxes, verdict):
            if mention_id not in known:
                raise DeixisError(f"image {name}: there is no mention {mention_id!r}")
            if bool(boxes) != (verdict == "box"):
                raise DeixisError(f"image {name}: boxes go with the verdict “box”, and it with boxes")
            cut = tuple(check_box(box, image.width, image.height) for box in boxes)
            return BoxesFix(mention_id, cut, verdict)
        case AcceptFix(key):
            if not key.startswith(f"{REVIEW} "):
                raise DeixisError(f"image {name}: {key!r} is no review")
    return fix


def image_states(
    connection: Connection, settings: Settings
) -> Iterator[tuple[int, Document, ImageState, dict[str, int | bool]]]:
    """Every image's number, document, state rebuilt from the log, and what the tables say of it."""
    images = schema.images
    columns = (images.c.finished, images.c.mentions, images.c.chains, images.c.links)
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
            kept = {column.name: getattr(row, column.name) for column in columns}
            yield row.id, document, state, kept


def differences(connection: Connection, settings: Settings) -> list[str]:
    """Where the tables that are kept for speed disagree with the log. Images marked for refreshing are passed over."""
    items = schema.items
    found = schema.faults(connection)
    stale = set(connection.execute(select(schema.stale.c.image_id)).scalars())
    for number, document, state, kept in image_states(connection, settings):
        if number in stale:
            continue
        name = document.image.id
        if kept != summary(state):
            found.append(f"image {name}: the table has {kept}, the log gives {summary(state)}")
        rows = connection.execute(select(items.c.key, items.c.question).where(items.c.image_id == number))
        present = {row.key: row.question for row in rows}
        wanted = {question.key: msgspec.json.encode(question) for question in state.questions}
        if present != wanted:
            found.append(f"image {name}: open questions differ: {sorted(present.keys() ^ wanted.keys())}")
    return found
