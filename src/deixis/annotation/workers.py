"""Workers in the database, and decisions about them."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, bindparam, insert, select

from deixis.annotation import schema
from deixis.errors import DeixisError

ROLES = ("worker", "reviewer", "administrator")
_ROLE = select(schema.workers.c.role).where(schema.workers.c.id == bindparam("worker"))


class Decision(msgspec.Struct, frozen=True):
    """A suspension or reinstatement; `answered` is the number of items the worker had answered in the task."""

    worker: int
    task: str
    standing: str
    reason: str
    answered: int
    created: float


def check_role(role: str) -> None:
    if role not in ROLES:
        raise DeixisError(f"{role!r} is not a role; choose from {', '.join(ROLES)}")


def add_worker(connection: Connection, name: str, role: str, now: float) -> int:
    """Add a worker and return its id. Names must be unique and not empty."""
    check_role(role)
    table = schema.workers
    if not name.strip():
        raise DeixisError("a worker needs a name")
    if connection.execute(select(table.c.id).where(table.c.name == name)).first() is not None:
        raise DeixisError(f"a worker named {name!r} already exists")
    values = {"name": name, "role": role, "created": now}
    return int(connection.execute(insert(table).values(values).returning(table.c.id)).scalar_one())


def role_of(connection: Connection, worker: int) -> str:
    role = connection.execute(_ROLE, {"worker": worker}).scalar()
    if role is None:
        raise DeixisError(f"there is no worker {worker}")
    return str(role)


def worker_number(connection: Connection, name: str) -> int:
    worker_id = connection.execute(select(schema.workers.c.id).where(schema.workers.c.name == name)).scalar()
    if worker_id is None:
        raise DeixisError(f"there is no worker {name!r}")
    return int(worker_id)


def all_decisions(connection: Connection) -> list[Decision]:
    table = schema.decisions
    rows = connection.execute(select(table).order_by(table.c.id))
    return [Decision(r.worker_id, r.task, r.standing, r.reason, r.answered, r.created) for r in rows]
