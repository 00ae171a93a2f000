"""The database of a project: its tables, its schema version, and how a connection is opened.

Judgments, fixes and decisions are only ever added. Items (the open questions) and standings are derived from them and
kept for speed; `Workbench.check` compares. SQLite (in WAL mode) by default, PostgreSQL for a team.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    create_engine,
    event,
    insert,
    inspect,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from deixis.errors import DeixisError, InputError
from deixis.files import require_database

metadata = MetaData()

project = Table("project", metadata, Column("key", String(40), primary_key=True), Column("value", Text, nullable=False))

images = Table(
    "images",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("document", LargeBinary, nullable=False),
    # Raised by every change of the image; a fix that was made for an older version is refused.
    Column("version", Integer, nullable=False, default=0),
    Column("finished", Boolean, nullable=False, default=False),
    Column("mentions", Integer, nullable=False, default=0),
    Column("chains", Integer, nullable=False, default=0),
    Column("links", Integer, nullable=False, default=0),
)

# Images some of whose judgments were voided: their items are to be derived anew.
stale = Table("stale", metadata, Column("image_id", ForeignKey("images.id"), primary_key=True))

workers = Table(
    "workers",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("created", Float, nullable=False),
)

known = Table(
    "known",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("task", String(20), nullable=False),
    # Questions of the qualification test are kept apart from those that are hidden among the work.
    Column("test", Boolean, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Column("question", LargeBinary, nullable=False),
    Column("truth", LargeBinary, nullable=False),
    Index("known_task", "task", "test", "id"),
)

items = Table(
    "items",
    metadata,
    Column("id", Integer, primary_key=True),
    # An open question of an image, or a worker's own copy of a question whose answer is known.
    Column("image_id", ForeignKey("images.id")),
    Column("known_id", ForeignKey("known.id")),
    Column("task", String(20), nullable=False),
    Column("key", Text, nullable=False),
    Column("question", LargeBinary, nullable=False),
    Column("worker_id", ForeignKey("workers.id")),
    Column("token", String(40), unique=True),
    Column("leased_until", Float, nullable=False, default=0.0),
    Column("proposal", LargeBinary),
    UniqueConstraint("image_id", "key"),
    Index("items_queue", "task", "image_id", "id", "leased_until"),
    Index("items_worker", "worker_id"),
)

#: What an item's lease is set to when nobody holds it.
FREE = {"worker_id": None, "token": None, "leased_until": 0.0, "proposal": None}
RELEASE = update(items).where(items.c.id == bindparam("number")).values(FREE)

barred = Table(
    "barred",
    metadata,
    Column("item_id", ForeignKey("items.id", ondelete="CASCADE"), primary_key=True),
    Column("worker_id", Integer, primary_key=True),
)

judgments = Table(
    "judgments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("image_id", ForeignKey("images.id")),
    Column("known_id", ForeignKey("known.id")),
    Column("task", String(20), nullable=False),
    Column("key", Text, nullable=False),
    Column("worker_id", ForeignKey("workers.id"), nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("comment", Text, nullable=False, default=""),
    Column("proposal", LargeBinary),
    Column("token", String(40), nullable=False, unique=True),
    Column("created", Float, nullable=False),
    Index("judgments_image", "image_id", "id"),
    Index("judgments_worker", "worker_id", "task", "id"),
    Index("judgments_known", "worker_id", "known_id"),
)

# What is known of an answer's truth: of verification questions at once, of drawings once Box Quality has spoken.
outcomes = Table(
    "outcomes",
    metadata,
    Column("judgment_id", ForeignKey("judgments.id"), primary_key=True),
    Column("worker_id", ForeignKey("workers.id"), nullable=False),
    Column("task", String(20), nullable=False),
    Column("test", Boolean, nullable=False),
    Column("correct", Boolean, nullable=False),
    Index("outcomes_worker", "worker_id", "task", "test", "judgment_id"),
)

standings = Table(
    "standings",
    metadata,
    Column("worker_id", ForeignKey("workers.id"), primary_key=True),
    Column("task", String(20), primary_key=True),
    Column("standing", String(20), nullable=False),
    # Outcomes of judgments up to this one no longer count: the worker was reinstated.
    Column("since", Integer, nullable=False, default=0),
)

# Suspensions and reinstatements, by the rules or by an administrator.
decisions = Table(
    "decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("worker_id", ForeignKey("workers.id"), nullable=False),
    Column("task", String(20), nullable=False),
    Column("standing", String(20), nullable=False),
    Column("reason", Text, nullable=False),
    Column("answered", Integer, nullable=False),
    Column("created", Float, nullable=False),
)

# Judgments of suspended workers: they stay in the log and count for nothing.
voided = Table(
    "voided",
    metadata,
    Column("judgment_id", ForeignKey("judgments.id"), primary_key=True),
    Column("decision_id", ForeignKey("decisions.id"), nullable=False),
)

fixes = Table(
    "fixes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("image_id", ForeignKey("images.id"), nullable=False),
    Column("worker_id", ForeignKey("workers.id"), nullable=False),
    Column("fix", LargeBinary, nullable=False),
    Column("comment", Text, nullable=False, default=""),
    Column("created", Float, nullable=False),
    Index("fixes_image", "image_id", "id"),
)

invitations = Table(
    "invitations",
    metadata,
    Column("secret_hash", String(64), primary_key=True),
    Column("role", String(20), nullable=False),
    Column("expires", Float, nullable=False),
    Column("worker_id", ForeignKey("workers.id")),
)

sessions = Table(
    "sessions",
    metadata,
    Column("secret_hash", String(64), primary_key=True),
    Column("worker_id", ForeignKey("workers.id"), nullable=False),
    Column("expires", Float, nullable=False),
)

#: Step n brings a database of version n + 1 to version n + 2.
MIGRATIONS: tuple[Callable[[Connection], None], ...] = ()


#: Added to what is said of a damaged project, which nothing can make again.
REMEDY = "put back a backup of it"


def schema_version() -> int:
    """The version this Deixis reads and writes."""
    return 1 + len(MIGRATIONS)


def open_engine(where: str | Path, *, durable: bool = True) -> Engine:
    """Connect to a project: a file name for SQLite, or a database URL (`postgresql+psycopg://…`).

    Args:
        durable: sync every commit to the disk. Without, a kill of the process still loses nothing, a loss of power may.
    """
    text = str(where)
    if "://" not in text and os.path.lexists(text):
        require_database(Path(text))
    try:
        url = make_url(text if "://" in text else f"sqlite:///{text}")
        engine = create_engine(url, **({} if url.database in (None, "", ":memory:") else _POOL))
    except (ArgumentError, NoSuchModuleError) as fault:
        raise DeixisError(f"{shown(text)}: is neither a file nor a database URL ({fault})") from None
    except ModuleNotFoundError as fault:
        raise DeixisError(f"{shown(text)}: needs the Python package {fault.name}") from None
    if engine.dialect.name == "sqlite":
        _tune_sqlite(engine, durable)
    return engine


def shown(where: str | Path) -> str:
    """A project's place as it may be printed: without the password of a database URL."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", str(where))


_POOL: dict[str, Any] = {"pool_size": 10, "max_overflow": 50}


def _tune_sqlite(engine: Engine, durable: bool) -> None:
    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        # Transactions are begun below: the driver's own begin would take the write lock too late.
        connection.isolation_level = None
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {'FULL' if durable else 'OFF'}",
            "busy_timeout = 30000",
            "foreign_keys = ON",
            "cache_size = -65536",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes: all of it is there when the block ends, or nothing."""
    with _turn(engine), engine.connect().execution_options(writing=True) as connection, connection.begin():
        yield connection


_turns: WeakKeyDictionary[Engine, Lock] = WeakKeyDictionary()
_turns_lock = Lock()


def _turn(engine: Engine) -> AbstractContextManager[object]:
    """SQLite has one writer at a time, and whoever comes too early sleeps; the threads of a process queue instead."""
    if engine.dialect.name != "sqlite":
        return nullcontext()
    with _turns_lock:
        return _turns.setdefault(engine, Lock())


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads: one moment's view of the project."""
    level = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
    with engine.connect().execution_options(**level) as connection, connection.begin():
        yield connection


@contextmanager
def glancing(engine: Engine) -> Iterator[Connection]:
    """A question or two with every request: PostgreSQL is spared the beginning and the end of a transaction."""
    if engine.dialect.name == "sqlite":
        with reading(engine) as connection:
            yield connection
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def create_tables(connection: Connection, where: str | Path) -> None:
    """Make the tables of a new project; a database that has some of these names for something else is refused."""
    if taken := sorted(metadata.tables.keys() & set(inspect(connection).get_table_names())):
        raise InputError(shown(where), f"has tables of its own named {', '.join(taken)}; choose another database")
    metadata.create_all(connection, checkfirst=False)
    connection.execute(insert(project).values(key="schema", value=str(schema_version())))


def is_project(engine: Engine, where: str | Path) -> bool:
    try:
        return project.name in inspect(engine).get_table_names()
    except DBAPIError as fault:
        raise InputError(
            shown(where), f"cannot be opened as a database ({fault.orig}); if it is damaged, {REMEDY}"
        ) from None


@contextmanager
def damage(where: str | Path) -> Iterator[None]:
    """Around work on a project: what its data should never cause is an `InputError` that names it."""
    try:
        yield
    except DBAPIError as fault:
        raise InputError(shown(where), f"cannot be used ({fault.orig}); if it is damaged, {REMEDY}") from fault
    except DAMAGE as fault:
        problem = " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
        raise InputError(shown(where), f"is damaged ({problem}); {REMEDY}") from fault


#: What reading values that are not as they were written ends in.
DAMAGE = (msgspec.MsgspecError, SQLAlchemyError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def check_tables(engine: Engine, where: str | Path) -> None:
    """Refuse a SQLite file whose tables are not a project's; a view in a table's place may never end."""
    if engine.dialect.name != "sqlite":
        return
    with reading(engine) as connection:
        rows = connection.exec_driver_sql("SELECT name, type FROM sqlite_master")
        kinds = {str(name): str(kind) for name, kind in rows}
        strange = sorted(name for name, kind in kinds.items() if kind in ("view", "trigger"))
        missing = [name for name in metadata.tables if kinds.get(name) != "table"]
        for table in metadata.tables.values() if not missing else ():
            present = {row[1] for row in connection.exec_driver_sql(f'PRAGMA table_info("{table.name}")')}
            missing += [f"{table.name}.{column}" for column in set(table.columns.keys()) - present]
    if strange or missing:
        what = (
            f"is damaged: it has no {', '.join(sorted(missing))}"
            if missing
            else f"is damaged: {', '.join(strange)} is no part of a project"
        )
        raise InputError(shown(where), f"{what}; {REMEDY}")


def faults(connection: Connection) -> list[str]:
    """What SQLite itself finds wrong with the file."""
    if connection.dialect.name != "sqlite":
        return []
    found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
    lost = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    found += [f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there" for row in lost[:20]]
    return [line for line in found if line != "ok"]


def check_schema(engine: Engine, where: str | Path) -> None:
    """Bring an older database to this version; refuse a newer one, or one that is no project."""
    if not is_project(engine, where):
        raise InputError(shown(where), "holds no annotation project")
    with reading(engine) as connection:
        version = _version(connection, where)
    if version < schema_version():
        with writing(engine) as connection:
            # Another process may have brought it up in the meantime: whoever holds this row is alone with the steps.
            connection.execute(select(project.c.value).where(project.c.key == "schema").with_for_update())
            for step in MIGRATIONS[_version(connection, where) - 1 :]:
                step(connection)
            set_value(connection, "schema", str(schema_version()))
    check_tables(engine, where)


def _version(connection: Connection, where: str | Path) -> int:
    value = get_value(connection, "schema") or ""
    version = int(value) if re.fullmatch("[0-9]{1,9}", value) else 0
    if version < 1:
        raise InputError(shown(where), f"does not say which schema it has; {REMEDY}")
    if version > schema_version():
        problem = f"has schema {version}, and this Deixis knows {schema_version()}: it was made by a newer one"
        raise InputError(shown(where), problem)
    return version


def get_value(connection: Connection, key: str) -> str | None:
    return connection.execute(select(project.c.value).where(project.c.key == key)).scalar_one_or_none()


def set_value(connection: Connection, key: str, value: str) -> None:
    if connection.execute(update(project).where(project.c.key == key).values(value=value)).rowcount == 0:
        connection.execute(insert(project).values(key=key, value=value))
