"""Who may come in: invitations, which make a worker once, links back, and sessions; of secrets only hashes."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection, Engine, delete, insert, select, update

from deixis.annotation import schema
from deixis.annotation.image_store import with_retries
from deixis.annotation.workers import add_worker, check_role, role_of
from deixis.errors import DeixisError

INVITATION_SECONDS = 14 * 86400.0
#: A session ends so long after it was last used.
SESSION_SECONDS = 14 * 86400.0
#: Its end is moved at most this often, so that a request is seldom a write.
RENEWAL_SECONDS = 3600.0
#: What stands in place of a role in an invitation that leads a worker back.
_BACK = "back"


class Account(NamedTuple):
    """Who a session belongs to."""

    worker: int
    name: str
    role: str


class Accounts:
    """Invitations and sessions of a project."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine, self._clock = engine, clock

    def invite(self, role: str = "worker", seconds: float = INVITATION_SECONDS) -> str:
        """A secret that makes one worker of this role, for a link; it is nowhere kept."""
        check_role(role)
        secret = secrets.token_urlsafe(24)
        values = {"secret_hash": _hash(secret), "role": role, "expires": self._clock() + seconds}
        with_retries(self._engine, lambda c: c.execute(insert(schema.invitations).values(values)))
        return secret

    def invite_back(self, worker: int, seconds: float = INVITATION_SECONDS) -> str:
        """A secret that opens one session of a worker there is already: a lost session, another device."""
        secret = secrets.token_urlsafe(24)
        values = {"secret_hash": _hash(secret), "role": _BACK, "worker_id": worker}
        values["expires"] = self._clock() + seconds

        def attempt(connection: Connection) -> None:
            role_of(connection, worker)
            connection.execute(insert(schema.invitations).values(values))

        with_retries(self._engine, attempt)
        return secret

    def come_back(self, secret: str) -> Account:
        """Whom a link back leads in; it works once."""
        table, people = schema.invitations, schema.workers
        mine = (table.c.secret_hash == _hash(secret), table.c.role == _BACK, table.c.expires > self._clock())

        def attempt(connection: Connection) -> Account:
            worker = connection.execute(select(table.c.worker_id).where(*mine)).scalar()
            if connection.execute(delete(table).where(*mine)).rowcount != 1:
                raise DeixisError("this link is unknown, used or expired; ask for a new one")
            row = connection.execute(select(people).where(people.c.id == worker)).one()
            return Account(row.id, row.name, row.role)

        return with_retries(self._engine, attempt)

    def has_administrator(self) -> bool:
        people = schema.workers
        with schema.reading(self._engine) as connection:
            query = select(people.c.id).where(people.c.role == "administrator").limit(1)
            return connection.execute(query).first() is not None

    def accept(self, secret: str, name: str) -> Account:
        """Turn an invitation into a worker of that name; an invitation works once."""
        table = schema.invitations

        def attempt(connection: Connection) -> Account:
            row = connection.execute(select(table).where(table.c.secret_hash == _hash(secret))).one_or_none()
            if row is None or row.worker_id is not None or row.expires <= self._clock():
                raise DeixisError("this invitation is unknown, used or expired; ask for a new one")
            worker = add_worker(connection, name, row.role, self._clock())
            used = connection.execute(
                update(table)
                .where(table.c.secret_hash == row.secret_hash, table.c.worker_id.is_(None))
                .values(worker_id=worker)
            )
            if used.rowcount != 1:
                raise DeixisError("this invitation was used in the meantime; ask for a new one")
            return Account(worker, name, row.role)

        return with_retries(self._engine, attempt)

    def open_session(self, worker: int) -> str:
        """A secret by which `account_of` knows the worker again, for a cookie."""
        secret = secrets.token_urlsafe(24)
        values = {"secret_hash": _hash(secret), "worker_id": worker, "expires": self._clock() + SESSION_SECONDS}
        with_retries(self._engine, lambda c: c.execute(insert(schema.sessions).values(values)))
        return secret

    def account_of(self, session: str) -> Account | None:
        """Whose session it is, which lives on for that; None if it is unknown or over."""
        table, people = schema.sessions, schema.workers
        query = (
            select(people.c.id, people.c.name, people.c.role, table.c.expires)
            .join(table, table.c.worker_id == people.c.id)
            .where(table.c.secret_hash == _hash(session), table.c.expires > self._clock())
        )
        with schema.glancing(self._engine) as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        until = self._clock() + SESSION_SECONDS
        if row.expires < until - RENEWAL_SECONDS:
            change = update(table).where(table.c.secret_hash == _hash(session)).values(expires=until)
            with_retries(self._engine, lambda c: c.execute(change))
        return Account(row.id, row.name, row.role)

    def close_session(self, session: str) -> None:
        """End a session, and forget those that are over."""
        table = schema.sessions
        over = (table.c.secret_hash == _hash(session)) | (table.c.expires <= self._clock())
        with_retries(self._engine, lambda c: c.execute(delete(table).where(over)))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
