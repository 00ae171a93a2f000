"""Access to a project: invitations, links to sign in again, and sessions.

An invitation creates one worker. The database holds only hashes of the secrets.
"""

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
#: A session ends this long after its last use.
SESSION_SECONDS = 14 * 86400.0
#: The end of a session is extended at most this often, so that most requests do not write.
RENEWAL_SECONDS = 3600.0
#: A sign-in link ends this long after its last use.
LINK_SECONDS = 365 * 86400.0
#: The role column of an invitation that signs in an existing worker.
_SIGN_IN = "back"


class Account(NamedTuple):
    """The worker that a session belongs to."""

    worker: int
    name: str
    role: str


class Accounts:
    """Invitations and sessions of a project."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine, self._clock = engine, clock

    def invite(self, role: str = "worker", seconds: float = INVITATION_SECONDS) -> str:
        """Create an invitation for one new worker of this role. Returns its secret, which is not stored."""
        check_role(role)
        secret = secrets.token_urlsafe(24)
        values = {"secret_hash": _hash(secret), "role": role, "expires": self._clock() + seconds}
        with_retries(self._engine, lambda c: c.execute(insert(schema.invitations).values(values)))
        return secret

    def sign_in_link(self, worker: int) -> str:
        """Create a link that signs in an existing worker, after a lost session or on another device.

        It works as often as it is used, until another is created or a year passes without use; an administrator's works
        once, within two weeks. Returns its secret, which is not stored.
        """
        secret = secrets.token_urlsafe(24)
        table = schema.invitations

        def attempt(connection: Connection) -> None:
            seconds = INVITATION_SECONDS if role_of(connection, worker) == "administrator" else LINK_SECONDS
            connection.execute(delete(table).where(table.c.worker_id == worker, table.c.role == _SIGN_IN))
            values = {"secret_hash": _hash(secret), "role": _SIGN_IN, "worker_id": worker}
            connection.execute(insert(table).values(expires=self._clock() + seconds, **values))

        with_retries(self._engine, attempt)
        return secret

    def sign_in(self, secret: str) -> Account:
        """The account of a worker who has the secret of `sign_in_link`."""
        table, people = schema.invitations, schema.workers
        valid = (table.c.secret_hash == _hash(secret), table.c.role == _SIGN_IN, table.c.expires > self._clock())

        def attempt(connection: Connection) -> Account:
            query = select(people).join(table, table.c.worker_id == people.c.id).where(*valid)
            row = connection.execute(query).one_or_none()
            if row is None:
                raise DeixisError("this link is unknown, used or expired; ask for a new one")
            if row.role == "administrator":
                if connection.execute(delete(table).where(*valid)).rowcount != 1:
                    raise DeixisError("this link was used in the meantime; ask for a new one")
            else:
                connection.execute(update(table).where(*valid).values(expires=self._clock() + LINK_SECONDS))
            return Account(row.id, row.name, row.role)

        return with_retries(self._engine, attempt)

    def has_administrator(self) -> bool:
        people = schema.workers
        with schema.reading(self._engine) as connection:
            query = select(people.c.id).where(people.c.role == "administrator").limit(1)
            return connection.execute(query).first() is not None

    def accept(self, secret: str, name: str) -> Account:
        """Redeem an invitation, which works once. Creates a worker with this name."""
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
        """Open a session. Returns its secret, to be stored in a cookie and passed to `account_of`."""
        secret = secrets.token_urlsafe(24)
        values = {"secret_hash": _hash(secret), "worker_id": worker, "expires": self._clock() + SESSION_SECONDS}
        with_retries(self._engine, lambda c: c.execute(insert(schema.sessions).values(values)))
        return secret

    def account_of(self, session: str) -> Account | None:
        """The account of a session, or None if the session is unknown or has ended. Extends the session."""
        table, people = schema.sessions, schema.workers
        query = (
            select(people.c.id, people.c.name, people.c.role, table.c.expires)
            .join(table, table.c.worker_id == people.c.id)
            .where(table.c.secret_hash == _hash(session), table.c.expires > self._clock())
        )
        with schema.quick_reading(self._engine) as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        expires = self._clock() + SESSION_SECONDS
        if row.expires < expires - RENEWAL_SECONDS:
            change = update(table).where(table.c.secret_hash == _hash(session)).values(expires=expires)
            with_retries(self._engine, lambda c: c.execute(change))
        return Account(row.id, row.name, row.role)

    def close_session(self, session: str) -> None:
        """End a session, and delete all expired ones."""
        table = schema.sessions
        ended = (table.c.secret_hash == _hash(session)) | (table.c.expires <= self._clock())
        with_retries(self._engine, lambda c: c.execute(delete(table).where(ended)))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
