"""The connection: pragmas, write transactions, error translation, insert-once in both dialects."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, JsonValue, ValidationError
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from harness.records import canonical_json
from memory.errors import CorruptStore, DiskFull, StoreBusy, StoreError

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another process' transaction on SQLite."""

R = TypeVar("R", bound=BaseModel)

_WRITE = "cohelix_write"
_DISK_CODES = ("SQLITE_FULL", "SQLITE_IOERR")
_CORRUPT_CODES = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_BUSY_CODES = ("SQLITE_BUSY", "SQLITE_LOCKED")


def now() -> str:
    """The current time, UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def encode(value: JsonValue) -> str:
    """Serialise for a text column.

    Raises:
        StoreError: the value has NaN, infinity or something that is not JSON.
    """
    try:
        text = canonical_json(value)
        text.encode()  # a lone surrogate is JSON for Python and text for no database
    except (TypeError, ValueError) as error:
        raise StoreError(f"cannot store a value that is not JSON; got {error}; store text, numbers, lists") from error
    return text


def decode(text: str) -> Any:
    """Read a text column back.

    Raises:
        CorruptStore: the text is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise CorruptStore(f"a stored record is not JSON ({error}); restore the store from a copy") from error


def read_record(kind: type[R], text: str) -> R:
    """Read a stored record back.

    Raises:
        CorruptStore: the text is not JSON, or not such a record.
    """
    try:
        return kind.model_validate(decode(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise CorruptStore(
            f"a stored {kind.__name__} cannot be read; got {'.'.join(map(str, first['loc']))}: {first['msg']}; it was "
            "edited, or written by another version; open the home with that version, or restore the store from a copy"
        ) from error


def insert_once(dialect: str, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """An insert that leaves an existing row with the same unique key alone."""
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


class Database:
    """One engine; every read and write of the store passes through its two context managers."""

    def __init__(self, engine: Engine) -> None:
        """Prepare an engine made by :func:`connect`."""
        self.engine = engine
        self.dialect = engine.dialect.name
        self.place = engine.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self, action: str) -> Iterator[Connection]:
        """A read transaction; failures become a StoreError that names ``action``."""
        with self._translated(action), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self, action: str) -> Iterator[Connection]:
        """A write transaction: all of it is durable after the block, or none of it happened."""
        with self._translated(action), self.engine.connect() as connection:
            connection = connection.execution_options(**{_WRITE: True})
            with connection.begin():
                yield connection

    def insert_once(self, connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert rows; a row whose unique key is taken is left out."""
        if rows:
            connection.execute(insert_once(self.dialect, table), list(rows))

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise _typed(action, self.place, error) from error
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(f"{action} failed on {self.place}; got {error}") from error
        except UnicodeEncodeError as error:  # the driver's own: an id typed in another encoding, say
            raise StoreError(f"{action!r} failed; got text that is not Unicode ({error}); type it as UTF-8") from error


def _typed(action: str, place: str, error: sa.exc.DBAPIError) -> StoreError:
    original = error.orig
    code = str(getattr(original, "sqlite_errorname", "") or getattr(original, "sqlstate", "") or "")
    head = f"{action} failed on {place}; got {original} ({code or type(original).__name__}); "
    if code.startswith(_DISK_CODES) or code == "53100":
        return DiskFull(head + "nothing of it was stored; free disk space (or lift the file-size limit) and resume")
    if code.startswith(_CORRUPT_CODES):
        return CorruptStore(head + "the file is damaged or not a cohelix store; restore a copy or choose another home")
    if code.startswith(_BUSY_CODES):
        return StoreBusy(head + f"another process wrote for over {BUSY_TIMEOUT_S:.0f} s; stop it or try again")
    return StoreError(head + "check the path, its permissions and the database's own log")


def connect(url: str) -> Database:
    """Open an engine for a database URL.

    Args:
        url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/name``.

    Raises:
        StoreError: the URL cannot be read, names another kind of database, or its driver is missing.
    """
    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise StoreError(f"store URL names {parsed.get_backend_name()!r}; expected sqlite or postgresql")
        arguments = {"timeout": BUSY_TIMEOUT_S} if parsed.get_backend_name() == "sqlite" else {}
        engine = sa.create_engine(parsed, connect_args=arguments)
    except sa.exc.ArgumentError as error:
        raise StoreError(f"store URL cannot be read; got {error}; expected sqlite:///path") from error
    except ModuleNotFoundError as error:
        raise StoreError(f"no driver for the store URL ({error}); install it: `pip install psycopg`") from error
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    return Database(engine)


def _prepare_sqlite(engine: Engine) -> None:
    """WAL, full fsync per commit, foreign keys, and transactions that take the write lock at once."""

    @sa.event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not open transactions by itself
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={int(BUSY_TIMEOUT_S * 1000)}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        # A deferred transaction that later writes can fail at once with "locked"; IMMEDIATE waits instead.
        is_write = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")
