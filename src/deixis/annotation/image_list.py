"""The images of a project as a list for reviewers: their state, their workers, and how much these disagree."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, func, select, true

from deixis.annotation import schema
from deixis.errors import DeixisError

_images = schema.images
#: The parts of a project that can be listed. The most disputed images come first in `disputed`.
PARTS: dict[str, ColumnElement[bool]] = {
    "all": true(),
    "review": _images.c.waiting > 0,
    "disputed": _images.c.disputed > 0,
    "open": ~_images.c.finished,
    "finished": _images.c.finished,
}


class ListedImage(msgspec.Struct, frozen=True):
    """An image in a list. `waiting`: questions for a reviewer. `disputed`: questions on which workers disagree.

    `answers` is the number of answers that count, `workers` are the names of those who gave them.
    """

    id: str
    finished: bool
    waiting: int
    disputed: int
    chains: int
    answers: int
    workers: tuple[str, ...]


class ImageList(msgspec.Struct, frozen=True):
    """Some images of a part of a project that has `total` images, from index `start` on."""

    images: tuple[ListedImage, ...]
    start: int
    total: int


class Neighbours(msgspec.Struct, frozen=True):
    """An image's place in a list, counted from 1 (0 if it is not in it), and the images before and after it."""

    place: int
    total: int
    previous: str | None
    next: str | None


def list_images(connection: Connection, part: str, start: int, count: int) -> ImageList:
    total = connection.execute(select(func.count()).select_from(_images).where(_condition(part))).scalar_one()
    query = select(_images).where(_condition(part)).order_by(*_order(part)).offset(start).limit(count)
    rows = connection.execute(query).all()
    answers, names = _answers_and_workers(connection, [row.id for row in rows])
    images = tuple(
        ListedImage(
            id=row.name,
            finished=row.finished,
            waiting=row.waiting,
            disputed=row.disputed,
            chains=row.chains,
            answers=answers.get(row.id, 0),
            workers=tuple(names.get(row.id, ())),
        )
        for row in rows
    )
    return ImageList(images, start, total)


def neighbours(connection: Connection, name: str, part: str) -> Neighbours:
    """The images around one. If it is no longer in the part, the part begins after it."""
    order = _order(part)
    window: Select[Any] = select(
        _images.c.name,
        func.row_number().over(order_by=order).label("place"),
        func.lag(_images.c.name).over(order_by=order).label("previous"),
        func.lead(_images.c.name).over(order_by=order).label("next"),
    ).where(_condition(part))
    inside = window.subquery()
    row = connection.execute(select(inside).where(inside.c.name == name)).one_or_none()
    total = connection.execute(select(func.count()).select_from(_images).where(_condition(part))).scalar_one()
    if row is not None:
        return Neighbours(row.place, total, row.previous, row.next)
    first = select(_images.c.name).where(_condition(part)).order_by(*_order(part)).limit(1)
    return Neighbours(0, total, None, connection.execute(first).scalar())


def _answers_and_workers(connection: Connection, images: list[int]) -> tuple[dict[int, int], dict[int, list[str]]]:
    log, people, void = schema.judgments, schema.workers, schema.voided
    query = (
        select(log.c.image_id, people.c.name, func.count())
        .join(people, people.c.id == log.c.worker_id)
        .outerjoin(void, void.c.judgment_id == log.c.id)
        .where(log.c.image_id.in_(images), void.c.judgment_id.is_(None))
        .group_by(log.c.image_id, people.c.name)
        .order_by(log.c.image_id, people.c.name)
    )
    answers: dict[int, int] = {}
    names: dict[int, list[str]] = {}
    for image, name, count in connection.execute(query):
        answers[image] = answers.get(image, 0) + count
        names.setdefault(image, []).append(name)
    return answers, names


def _condition(part: str) -> ColumnElement[bool]:
    if part not in PARTS:
        raise DeixisError(f"{part!r} is not a part of a project; choose from {', '.join(PARTS)}")
    return PARTS[part]


def _order(part: str) -> list[ColumnElement[Any]]:
    return [_images.c.disputed.desc(), _images.c.id] if part == "disputed" else [_images.c.id.asc()]
