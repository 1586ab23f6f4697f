"""Executed graph nodes, one row each, in order."""

from __future__ import annotations

import sqlalchemy as sa

from memory import tables
from memory.database import Database, encode, read_record
from memory.errors import Conflict
from memory.records import StepRecord
from memory.redaction import redact


class Steps:
    """The steps of one store."""

    def __init__(self, database: Database) -> None:
        """Use ``database``."""
        self._database = database

    def record(self, step: StepRecord) -> StepRecord:
        """Store a step, secrets removed; the same step twice is stored once.

        Raises:
            Conflict: another step of this run has this number; take :meth:`next_number`.
        """
        stored = StepRecord.model_validate(redact(step.model_dump(mode="json")))
        body = encode(stored.model_dump(mode="json"))
        columns = tables.steps.c
        row = {"run_id": step.run_id, "number": step.number, "node": step.node, "body": body}
        with self._database.write(f"recording step {step.number} of run {step.run_id}") as connection:
            self._database.insert_once(connection, tables.steps, [row])
            held = connection.execute(
                sa.select(columns.body).where(columns.run_id == step.run_id, columns.number == step.number)
            ).scalar()
        if held != body:
            raise Conflict(
                f"run {step.run_id} already has another step {step.number}; use steps.next_number(run_id) for a new one"
            )
        return stored

    def next_number(self, run_id: str) -> int:
        """The number after the last recorded step, 0 for a new run."""
        query = sa.select(sa.func.max(tables.steps.c.number)).where(tables.steps.c.run_id == run_id)
        with self._database.read(f"numbering steps of run {run_id}") as connection:
            last = connection.execute(query).scalar()
        return 0 if last is None else int(last) + 1

    def list(self, run_id: str) -> tuple[StepRecord, ...]:
        """All steps of a run, in order of execution."""
        columns = tables.steps.c
        query = sa.select(columns.body).where(columns.run_id == run_id).order_by(columns.number)
        with self._database.read(f"listing steps of run {run_id}") as connection:
            bodies = connection.execute(query).scalars().all()
        return tuple(read_record(StepRecord, body) for body in bodies)
