"""Attempt traces: batched idempotent inserts, filtered and paged reads; sized for 100,000 attempts a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import sqlalchemy as sa
from pydantic import JsonValue

from harness.records import Scored, Split, Trace
from memory import tables
from memory.database import Database, encode, read_record
from memory.errors import Conflict, NotFound
from memory.redaction import Redactor

_BATCH_ROWS = 500
"""Rows per insert and ids per query; below SQLite's variable limit."""


class Traces:
    """The traces of one store."""

    def __init__(self, database: Database) -> None:
        """Use ``database``."""
        self._database = database

    def add(self, run_id: str, traces: Iterable[Trace]) -> int:
        """Store traces, secrets removed; those already stored are left alone.

        Args:
            run_id: the run they belong to.
            traces: any number; written in one transaction, so all are stored or none.

        Returns:
            How many were new.

        Raises:
            Conflict: a stored trace with the same id has other content; nothing is stored.
        """
        redactor = Redactor.from_environment()
        iterator = iter(traces)
        added = 0
        with self._database.write(f"storing traces of run {run_id}") as connection:
            while batch := list(islice(iterator, _BATCH_ROWS)):
                added += self._add_batch(connection, run_id, batch, redactor)
        return added

    def _add_batch(self, connection: sa.Connection, run_id: str, batch: Sequence[Trace], redactor: Redactor) -> int:
        rows: dict[str, dict[str, JsonValue]] = {}
        for trace in batch:
            row = _row(run_id, trace, redactor)
            _refuse_conflict(trace.trace_id, rows.get(trace.trace_id, row)["body"], row["body"])
            rows[trace.trace_id] = row
        columns = tables.traces.c
        known = connection.execute(
            sa.select(columns.trace_id, columns.body).where(columns.run_id == run_id, columns.trace_id.in_(rows))
        )
        for trace_id, body in known:
            _refuse_conflict(trace_id, body, rows.pop(trace_id)["body"])
        self._database.insert_once(connection, tables.traces, list(rows.values()))
        return len(rows)

    def find(
        self,
        run_id: str,
        *,
        purpose: str | None = None,
        task_id: str | None = None,
        split: Split | None = None,
        policy_id: str | None = None,
        harness_id: str | None = None,
        status: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> tuple[Trace, ...]:
        """Read traces in the order they were stored; every filter given must match.

        Args:
            run_id: the run.
            purpose: why the attempt ran.
            task_id: one task's attempts.
            split: only attempts on this split.
            policy_id: weights that answered.
            harness_id: harness version in use.
            status: ``scored`` or ``unscored``.
            limit: at most so many.
            after: the trace id that ended the previous page.

        Raises:
            NotFound: ``after`` names a trace that this run does not have.
        """
        filters = {"run_id": run_id, "purpose": purpose, "task_id": task_id, "split": split,
                   "policy_id": policy_id, "harness_id": harness_id, "status": status}  # fmt: skip
        columns = tables.traces.c
        with self._database.read(f"reading traces of run {run_id}") as connection:
            query = sa.select(columns.body).where(*_conditions(filters)).order_by(columns.row_id)
            if after is not None:
                query = query.where(columns.row_id > _row_id(connection, run_id, after))
            if limit is not None:
                query = query.limit(limit)
            bodies = connection.execute(query).scalars().all()
        return tuple(read_record(Trace, body) for body in bodies)

    def iterate(self, run_id: str, *, purpose: str | None = None, page: int = _BATCH_ROWS) -> Iterator[Trace]:
        """Read all traces of a run (and purpose) page by page, in bounded memory."""
        after: str | None = None
        while found := self.find(run_id, purpose=purpose, limit=page, after=after):
            yield from found
            after = found[-1].trace_id

    def by_ids(self, trace_ids: Sequence[str]) -> tuple[Trace, ...]:
        """Read traces by id, in the order asked, from whichever run stored them.

        Raises:
            NotFound: some are not stored; the message names the first.
        """
        bodies: dict[str, str] = {}
        columns = tables.traces.c
        with self._database.read("reading traces by id") as connection:
            for start in range(0, len(trace_ids), _BATCH_ROWS):
                chunk = trace_ids[start : start + _BATCH_ROWS]
                rows = connection.execute(sa.select(columns.trace_id, columns.body).where(columns.trace_id.in_(chunk)))
                bodies |= {trace_id: body for trace_id, body in rows}
        missing = [trace_id for trace_id in trace_ids if trace_id not in bodies]
        if missing:
            raise NotFound(f"{len(missing)} of {len(trace_ids)} traces are not stored, first {missing[0]!r}")
        return tuple(read_record(Trace, bodies[trace_id]) for trace_id in trace_ids)

    def count(self, run_id: str, *, purpose: str | None = None, status: str | None = None) -> int:
        """Number of stored traces that match."""
        conditions = _conditions({"run_id": run_id, "purpose": purpose, "status": status})
        with self._database.read(f"counting traces of run {run_id}") as connection:
            query = sa.select(sa.func.count()).select_from(tables.traces).where(*conditions)
            return int(connection.execute(query).scalar_one())


def _row(run_id: str, trace: Trace, redactor: Redactor) -> dict[str, JsonValue]:
    return {
        "run_id": run_id,
        "trace_id": trace.trace_id,
        "task_id": trace.task_id,
        "split": trace.split,
        "policy_id": trace.policy_id,
        "harness_id": trace.harness_id,
        "purpose": trace.purpose,
        "status": trace.verdict.status,
        "exact": trace.verdict.parts.get("exact") if isinstance(trace.verdict, Scored) else None,
        "body": encode(redactor.value(trace.model_dump(mode="json"))),
    }


def _refuse_conflict(trace_id: str, stored: JsonValue, offered: JsonValue) -> None:
    if stored != offered:
        raise Conflict(
            f"trace {trace_id} is already stored with other content; nothing was stored; "
            "put everything that tells two attempts apart into the trace id"
        )


def _conditions(filters: dict[str, str | None]) -> list[sa.ColumnElement[bool]]:
    return [tables.traces.c[name] == value for name, value in filters.items() if value is not None]


def _row_id(connection: sa.Connection, run_id: str, trace_id: str) -> int:
    columns = tables.traces.c
    query = sa.select(columns.row_id).where(columns.run_id == run_id, columns.trace_id == trace_id)
    found = connection.execute(query).scalar()
    if found is None:
        raise NotFound(f"run {run_id} has no trace {trace_id!r} to continue after; start again without `after`")
    return int(found)
