"""The database of a project: tables, schema version, connections and transactions.

Judgments, fixes and decisions are append-only. Items (the open questions) and standings are derived from them and
stored for speed; `Workbench.check` compares both. SQLite (in WAL mode) is the default, PostgreSQL is for teams.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
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
    # Increased by every change of the image. A fix made for an older version is refused.
    Column("version", Integer, nullable=False, default=0),
    Column("finished", Boolean, nullable=False, default=False),
    Column("mentions", Integer, nullable=False, default=0),
    Column("chains", Integer, nullable=False, default=0),
    Column("links", Integer, nullable=False, default=0),
    # Questions that wait for a reviewer, and questions on which workers disagree.
    Column("waiting", Integer, nullable=False, default=0),
    Column("disputed", Integer, nullable=False, default=0),
)

# Images with newly voided judgments: their items must be recomputed.
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
    # True for questions of the qualification test, false for those hidden among the work.
    Column("test", Boolean, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Column("question", LargeBinary, nullable=False),
    Column("truth", LargeBinary, nullable=False),
    # Boxes that explain the truth to a worker who erred.
    Column("evidence", LargeBinary),
    Index("known_task", "task", "test", "id"),
)

items = Table(
    "items",
    metadata,
    Column("id", Integer, primary_key=True),
    # Either an open question of an image, or one worker's copy of a verification question.
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

#: Lease columns of an item that nobody holds.
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

# Whether an answer was right: known at once for verification questions, after Box Quality for drawings.
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
    # The latest judgment when the worker was reinstated. Outcomes up to it no longer count.
    Column("since", Integer, nullable=False, default=0),
)

# Suspensions and reinstatements, automatic or by an administrator.
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

# Discarded judgments: of suspended workers, or taken back by the worker (without a decision). They stay in the log but
# are not used.
voided = Table(
    "voided",
    metadata,
    Column("judgment_id", ForeignKey("judgments.id"), primary_key=True),
    Column("decision_id", ForeignKey("decisions.id")),
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


def _migrate_to_2(connection: Connection) -> None:
    """Answers that are taken back, counts for the list of images, reasons after a test, links asked together."""
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        make = (
            "CREATE TABLE voided (judgment_id INTEGER NOT NULL PRIMARY KEY REFERENCES judgments (id), "
            "decision_id INTEGER REFERENCES decisions (id))"
        )
        copy = "INSERT INTO voided SELECT judgment_id, decision_id FROM old_voided"
        steps = ["ALTER TABLE voided RENAME TO old_voided", make, copy, "DROP TABLE old_voided"]
    else:
        steps = ["ALTER TABLE voided ALTER COLUMN decision_id DROP NOT NULL"]
    steps.append(f"ALTER TABLE known ADD COLUMN evidence {'BLOB' if sqlite else 'BYTEA'}")
    steps += [f"ALTER TABLE images ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0" for name in ("waiting", "disputed")]
    # The counts are computed when the images are.
    steps.append("INSERT INTO stale SELECT id FROM images WHERE id NOT IN (SELECT image_id FROM stale)")
    for step in steps:
        connection.exec_driver_sql(step)
    # A project goes on as it began: in pairs.
    settings = msgspec.json.decode(get_value(connection, "settings") or "{}", type=dict[str, Any])
    set_value(connection, "settings", msgspec.json.encode({**settings, "link_together": False}).decode())


#: Step n (from 0) migrates a database from version n + 1 to version n + 2.
MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_migrate_to_2,)


#: Part of every message about a damaged project, which cannot be rebuilt from anything else.
REMEDY = "restore it from a backup"


def schema_version() -> int:
    """The schema version that this version of Deixis reads and writes."""
    return 1 + len(MIGRATIONS)


def open_engine(where: str | Path, *, durable: bool = True) -> Engine:
    """Connect to the database of a project. `where` is a file name for SQLite or a database URL (`postgresql://…`).

    Args:
        durable: sync every commit to disk. If False, a power failure may lose commits; killing the process never does.
    """
    text = str(where)
    if "://" not in text and os.path.lexists(text):
        require_database(Path(text))
    try:
        url = make_url(text if "://" in text else f"sqlite:///{text}")
        if url.drivername in ("postgresql", "postgres"):
            url = url.set(drivername="postgresql+psycopg")
        # Connections are tried before use: a restart of PostgreSQL ends those in the pool.
        ping = url.drivername.startswith("postgresql")
        engine = create_engine(url, pool_pre_ping=ping, **({} if url.database in (None, "", ":memory:") else _POOL))
    except (ArgumentError, NoSuchModuleError) as fault:
        raise DeixisError(f"{shown(text)}: is neither a file nor a database URL ({fault})") from None
    except ModuleNotFoundError as fault:
        raise DeixisError(f"{shown(text)}: needs the Python package {fault.name}") from None
    if engine.dialect.name == "sqlite":
        _tune_sqlite(engine, durable)
    return engine


def shown(where: str | Path) -> str:
    """The location of a project without the password of a database URL, for messages."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", str(where))


_POOL: dict[str, Any] = {"pool_size": 10, "max_overflow": 50}


def _tune_sqlite(engine: Engine, durable: bool) -> None:
    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        # `begin` below starts transactions; the driver would take the write lock too late.
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
    """A write transaction: committed when the block ends, rolled back if it raises."""
    with _write_lock(engine), engine.connect().execution_options(writing=True) as connection, connection.begin():
        yield connection


_write_locks: WeakKeyDictionary[Engine, Lock] = WeakKeyDictionary()
_write_locks_guard = Lock()


def _write_lock(engine: Engine) -> AbstractContextManager[object]:
    """SQLite allows one writer and polls for the lock. With this lock the threads of a process queue instead."""
    if engine.dialect.name != "sqlite":
        return nullcontext()
    with _write_locks_guard:
        return _write_locks.setdefault(engine, Lock())


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A read transaction: a consistent snapshot of the project."""
    level = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
    with engine.connect().execution_options(**level) as connection, connection.begin():
        yield connection


@contextmanager
def quick_reading(engine: Engine) -> Iterator[Connection]:
    """A connection for one or two small queries. On PostgreSQL it saves starting and ending a transaction."""
    if engine.dialect.name == "sqlite":
        with reading(engine) as connection:
            yield connection
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def create_tables(connection: Connection, where: str | Path) -> None:
    """Create the tables of a new project. Refuse a database that already has tables with these names."""
    if taken := sorted(metadata.tables.keys() & set(inspect(connection).get_table_names())):
        raise InputError(shown(where), f"already has tables named {', '.join(taken)}; choose another database")
    metadata.create_all(connection, checkfirst=False)
    connection.execute(insert(project).values(key="schema", value=str(schema_version())))


def is_project(engine: Engine, where: str | Path) -> bool:
    try:
        return project.name in inspect(engine).get_table_names()
    except DBAPIError as fault:
        if engine.dialect.name == "sqlite":
            problem, remedy = "cannot be opened as a database", f"if it is damaged, {REMEDY}"
        else:
            problem, remedy = "cannot be opened", "check that the server runs and that this user may open the database"
        raise InputError(shown(where), f"{problem} ({' '.join(str(fault.orig).split())}); {remedy}") from None


@contextmanager
def damage(where: str | Path) -> Iterator[None]:
    """Turn errors caused by damaged data in a project into an `InputError` that names the project."""
    try:
        yield
    except DBAPIError as fault:
        raise InputError(shown(where), f"cannot be used ({fault.orig}); if it is damaged, {REMEDY}") from fault
    except DAMAGE as fault:
        problem = " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
        raise InputError(shown(where), f"is damaged ({problem}); {REMEDY}") from fault


#: Exceptions that reading damaged values can raise.
DAMAGE = (msgspec.MsgspecError, SQLAlchemyError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def check_tables(engine: Engine, where: str | Path) -> None:
    """Refuse a SQLite file whose tables are not those of a project. A view instead of a table may never end."""
    if engine.dialect.name != "sqlite":
        return
    with reading(engine) as connection:
        rows = connection.exec_driver_sql("SELECT name, type FROM sqlite_master")
        kinds = {str(name): str(kind) for name, kind in rows}
        foreign = sorted(name for name, kind in kinds.items() if kind in ("view", "trigger"))
        missing = [name for name in metadata.tables if kinds.get(name) != "table"]
        for table in metadata.tables.values() if not missing else ():
            columns = {row[1] for row in connection.exec_driver_sql(f'PRAGMA table_info("{table.name}")')}
            missing += [f"{table.name}.{column}" for column in set(table.columns.keys()) - columns]
    if foreign or missing:
        problem = (
            f"is damaged: it has no {', '.join(sorted(missing))}"
            if missing
            else f"is damaged: {', '.join(foreign)} does not belong to a project"
        )
        raise InputError(shown(where), f"{problem}; {REMEDY}")


def back_up(engine: Engine, where: str | Path, copy: Path) -> None:
    """Write a consistent copy of a SQLite project to a new file, also while it is served. Its folder may be new."""
    if engine.dialect.name != "sqlite":
        raise DeixisError(f"{shown(where)}: back up a PostgreSQL database with pg_dump, as docs/team.md shows")
    if os.path.lexists(copy):
        raise InputError(copy, "exists already")
    partial = copy.with_name(f".{copy.name}.{os.urandom(6).hex()}.part")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Not within a transaction, which SQLAlchemy's connections always begin.
        with closing(engine.raw_connection()) as connection:
            connection.execute("VACUUM INTO ?", (str(partial),))
        with partial.open("r+b") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, copy)
    except (OSError, sqlite3.OperationalError) as fault:
        raise InputError(copy, getattr(fault, "strerror", None) or str(fault)) from None
    finally:
        with suppress(OSError):
            partial.unlink()


def integrity_faults(connection: Connection) -> list[str]:
    """Problems that SQLite's own integrity checks find in the file."""
    if connection.dialect.name != "sqlite":
        return []
    problems = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
    broken_references = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    problems += [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in broken_references[:20]]
    return [line for line in problems if line != "ok"]


def check_schema(engine: Engine, where: str | Path) -> None:
    """Migrate an older database to this version. Refuse a newer one, or one that is not a project."""
    if not is_project(engine, where):
        raise InputError(shown(where), "is not an annotation project")
    with reading(engine) as connection:
        version = _version(connection, where)
    if version < schema_version():
        with writing(engine) as connection:
            # The lock on this row keeps other processes from migrating at the same time; one may have done so already.
            connection.execute(select(project.c.value).where(project.c.key == "schema").with_for_update())
            for step in MIGRATIONS[_version(connection, where) - 1 :]:
                step(connection)
            set_value(connection, "schema", str(schema_version()))
    check_tables(engine, where)


def _version(connection: Connection, where: str | Path) -> int:
    value = get_value(connection, "schema") or ""
    version = int(value) if re.fullmatch("[0-9]{1,9}", value) else 0
    if version < 1:
        raise InputError(shown(where), f"has no valid schema version; {REMEDY}")
    if version > schema_version():
        problem = (
            f"has schema version {version}, newer than {schema_version()}, the latest this Deixis reads; upgrade Deixis"
        )
        raise InputError(shown(where), problem)
    return version


def get_value(connection: Connection, key: str) -> str | None:
    return connection.execute(select(project.c.value).where(project.c.key == key)).scalar_one_or_none()


def set_value(connection: Connection, key: str, value: str) -> None:
    if connection.execute(update(project).where(project.c.key == key).values(value=value)).rowcount == 0:
        connection.execute(insert(project).values(key=key, value=value))
