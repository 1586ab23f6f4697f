"""The work ledger: paid or costly work by key, recorded once; the first writer wins."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from pydantic import JsonValue

from memory import tables
from memory.database import Database, decode, encode, now
from memory.errors import StoreError
from memory.records import LedgerEntry
from memory.redaction import redact


class Ledger:
    """One run's ledger; implements :class:`harness.protocols.WorkLedger`."""

    def __init__(self, database: Database, run_id: str) -> None:
        """Use the rows of ``run_id`` in ``database``."""
        self._database = database
        self._run_id = run_id

    def entry(self, key: str) -> LedgerEntry | None:
        """The finished work under ``key``, or None when there is none.

        Unlike :meth:`find` this tells a recorded null from work that was never finished.
        """
        with self._database.read(f"looking up work {key}") as connection:
            return self._entry(connection, key)

    def find(self, key: str) -> JsonValue | None:
        """The recorded result, or None when this work was never finished; test with ``is None``, 0.0 is a result."""
        entry = self.entry(key)
        return None if entry is None else entry.result

    def record(self, key: str, *, kind: str, result: JsonValue) -> JsonValue:
        """Store a result once.

        Args:
            key: hash of all inputs of the work, ``purpose`` and ``replicate`` included.
            kind: what sort of work, for example ``evaluation`` or ``model_call``.
            result: any JSON value; null, 0.0 and [] are results.

        Returns:
            What the ledger holds now, durably: this result without secrets, or the first writer's.
            Use it in place of ``result``, so that an unbroken run and a resumed one see the same.

        Raises:
            StoreError: the key is held by work of another kind, or the value is not JSON.
        """
        row = {"run_id": self._run_id, "key": key, "kind": kind, "result": encode(redact(result)), "created_at": now()}
        with self._database.write(f"recording work {key}") as connection:
            self._database.insert_once(connection, tables.ledger, [row])
            kept = self._entry(connection, key)
        if kept is None or kept.kind != kind:
            held = "nothing" if kept is None else kept.kind
            raise StoreError(f"work {key} is recorded as {held!r}; got {kind!r}; put the kind into the key's hash")
        return kept.result

    def counts(self) -> dict[str, int]:
        """Number of entries by kind, kinds in alphabetical order."""
        query = (
            sa.select(tables.ledger.c.kind, sa.func.count())
            .where(tables.ledger.c.run_id == self._run_id)
            .group_by(tables.ledger.c.kind)
            .order_by(tables.ledger.c.kind)
        )
        with self._database.read("counting work") as connection:
            return {kind: count for kind, count in connection.execute(query)}

    def entries(self, *, kind: str | None = None) -> Iterator[LedgerEntry]:
        """All entries in the order they were recorded, read in pages."""
        after = 0
        columns = tables.ledger.c
        while True:
            query = sa.select(columns.row_id, *_entry_columns()).where(
                columns.run_id == self._run_id, columns.row_id > after
            )
            if kind is not None:
                query = query.where(columns.kind == kind)
            with self._database.read("listing work") as connection:
                rows = connection.execute(query.order_by(columns.row_id).limit(500)).all()
            if not rows:
                return
            after = rows[-1][0]
            yield from (_as_entry(*row[1:]) for row in rows)

    def _entry(self, connection: sa.Connection, key: str) -> LedgerEntry | None:
        query = sa.select(*_entry_columns()).where(tables.ledger.c.run_id == self._run_id, tables.ledger.c.key == key)
        row = connection.execute(query).first()
        return None if row is None else _as_entry(*row)


def _entry_columns() -> tuple[sa.Column[str], sa.Column[str], sa.Column[str], sa.Column[str]]:
    columns = tables.ledger.c
    return columns.key, columns.kind, columns.result, columns.created_at


def _as_entry(key: str, kind: str, result: str, created_at: str) -> LedgerEntry:
    return LedgerEntry(key=key, kind=kind, result=decode(result), created_at=created_at)
