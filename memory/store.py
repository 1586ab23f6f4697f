"""One object for everything a run keeps: ``Store.open(home)``.

Layout of ``home``: ``store.sqlite`` (or a database elsewhere, by URL), ``checkpoints/<checkpoint_id>/``,
``runs/<run_id>/``, ``images/`` (pictures that suites draw, named by their content). Rows are durable when a
method returns; a killed process leaves all of a write or none.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import sqlalchemy as sa

from memory import tables
from memory.database import Database, connect
from memory.errors import CorruptStore, SchemaTooNew, StoreError
from memory.files import discard_abandoned, file_error
from memory.ledger import Ledger
from memory.lineage import Lineage
from memory.metrics import Metrics
from memory.runs import Runs
from memory.steps import Steps
from memory.traces import Traces

DATABASE_NAME = "store.sqlite"
IMAGES = "images"
"""Folder below a home for the pictures that suites draw, named by their content."""

_CHECKED_BYTES = 64 << 20
"""Databases up to this size are checked page by page at opening; larger ones when read."""

_SCHEMA_LOCK = 0x636F6865
"""Postgres advisory lock that lets one process create the tables."""


class Store:
    """The store of one home folder. Open it with :meth:`open`; usable from several threads.

    Attributes:
        runs: run records, identity, the per-run lock.
        lineage: harness versions, checkpoints, pairs, decisions.
        traces: attempts.
        steps: executed graph nodes.
        metrics: what training steps measured.
    """

    def __init__(self, home: Path, database: Database) -> None:
        """Group the stores over one database; use :meth:`open`, which also checks it."""
        self.home = home
        self.images = home / IMAGES
        self._database = database
        self.runs = Runs(database, home / "runs")
        self.lineage = Lineage(database, home / "checkpoints")
        self.traces = Traces(database)
        self.steps = Steps(database)
        self.metrics = Metrics(database)

    @classmethod
    def open(cls, home: Path | str, url: str | None = None) -> Store:
        """Open the store of ``home``, creating what is missing.

        Args:
            home: folder for everything the program keeps.
            url: database URL; SQLite inside ``home`` by default.

        Raises:
            SchemaTooNew: the database was written by a newer version.
            CorruptStore: the database is damaged, or is some other program's.
            StoreError: the folder or database cannot be used.
        """
        folder = Path(home).expanduser().absolute()
        try:
            for name in ("runs", "checkpoints"):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise file_error(f"creating the home folder {folder}", error) from error
        discard_abandoned(folder / "checkpoints")
        database = connect(url or f"sqlite:///{folder / DATABASE_NAME}")
        try:
            _check_file(database)
            _prepare_schema(database)
        except StoreError:
            database.engine.dispose()
            raise
        return cls(folder, database)

    def ledger(self, run_id: str) -> Ledger:
        """The work ledger of a run (or of any other scope that shares finished work)."""
        return Ledger(self._database, run_id)

    def verify_checkpoint(self, checkpoint_id: str) -> Path:
        """The folder of a whole checkpoint; see :meth:`memory.lineage.Lineage.verify_checkpoint`."""
        return self.lineage.verify_checkpoint(checkpoint_id)

    def close(self) -> None:
        """Release all connections."""
        self._database.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_file(database: Database) -> None:
    path = database.engine.url.database
    if database.dialect != "sqlite" or not path or not Path(path).exists():
        return
    if Path(path).stat().st_size > _CHECKED_BYTES:
        return
    with database.read("checking the store") as connection:
        words = connection.exec_driver_sql("PRAGMA quick_check(1)").scalars().all()
    if words != ["ok"]:
        raise CorruptStore(f"{database.place} is damaged: {words[0]}; restore a copy or choose another home")


def _prepare_schema(database: Database) -> None:
    """Create the tables of a new database; check the version of an existing one and add tables it lacks."""
    if _has_schema(database) and _has_all_tables(database):
        return
    with database.write("creating the store's tables") as connection:
        if database.dialect == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
        if _names(connection) & set(tables.metadata.tables) != set(tables.metadata.tables):
            tables.metadata.create_all(connection)
        row = {"name": "schema_version", "value": str(tables.SCHEMA_VERSION)}
        database.insert_once(connection, tables.meta, [row])


def _has_schema(database: Database) -> bool:
    with database.read("reading the store's version") as connection:
        names = _names(connection)
        if tables.meta.name not in names:
            if database.dialect == "sqlite" and names:
                raise CorruptStore(
                    f"{database.place} holds tables {sorted(names)[:5]} of another program; choose another home"
                )
            return False
        found = connection.execute(
            sa.select(tables.meta.c.value).where(tables.meta.c.name == "schema_version")
        ).scalar()
    if found is None or not found.isdigit():
        raise CorruptStore(f"{database.place} has no readable schema version (got {found!r}); restore a copy")
    if int(found) > tables.SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{database.place} has schema version {found}; this program reads up to {tables.SCHEMA_VERSION}; "
            "update cohelix or choose another home"
        )
    if int(found) < tables.SCHEMA_VERSION:
        raise StoreError(
            f"{database.place} has schema version {found}, older than {tables.SCHEMA_VERSION}, and no migration "
            "is known; open it with the version that wrote it"
        )
    return True


def _has_all_tables(database: Database) -> bool:
    """False for a home written before a table was added; nothing else in it changes."""
    with database.read("listing the store's tables") as connection:
        return set(tables.metadata.tables) <= _names(connection)


def _names(connection: sa.Connection) -> set[str]:
    return set(sa.inspect(connection).get_table_names())
