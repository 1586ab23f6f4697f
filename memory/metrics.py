"""Measurements of training, one row per rollout step or SFT epoch, written while the block is running."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from pydantic import JsonValue

from memory import tables
from memory.database import Database, decode, encode, now
from memory.records import MetricRecord
from memory.redaction import redact


class Metrics:
    """The training measurements of one store."""

    def __init__(self, database: Database) -> None:
        """Use ``database``."""
        self._database = database

    def add(self, run_id: str, block_key: str, step: int, metrics: Mapping[str, JsonValue]) -> None:
        """Store what one step of a block measured; a step that is there already is left as it was.

        Call it from a trainer's progress callback::

            store.metrics.add(run_id, block_key, metrics.step, metrics.model_dump(mode="json"))

        A block that starts again after a kill reports some steps twice. Their numbers are equal but for seconds and
        memory, so the first report stays.

        Args:
            run_id: of the run.
            block_key: ledger key of the training block (:func:`policy.block.block_key`).
            step: absolute rollout step of an RL block; whatever counts the steps of another kind of block.
            metrics: a JSON object of finite numbers, texts and lists.

        Raises:
            StoreError: the values are not JSON, or the database cannot be written.
        """
        body = encode(redact(dict(metrics)))
        row = {"run_id": run_id, "block_key": block_key, "step": step, "body": body, "created_at": now()}
        with self._database.write(f"recording metrics of step {step} of {block_key}") as connection:
            self._database.insert_once(connection, tables.metrics, [row])

    def find(self, run_id: str, *, block_key: str | None = None) -> tuple[MetricRecord, ...]:
        """The steps of a run, block after block in the order they began, steps in order within a block.

        Args:
            run_id: of the run.
            block_key: only of this block; None takes all.
        """
        columns = tables.metrics.c
        query = sa.select(columns.block_key, columns.step, columns.body, columns.created_at).where(
            columns.run_id == run_id
        )
        if block_key is not None:
            query = query.where(columns.block_key == block_key)
        with self._database.read(f"finding metrics of run {run_id}") as connection:
            rows = connection.execute(query.order_by(columns.row_id)).all()
        began = {key: number for number, key in reversed(list(enumerate(row.block_key for row in rows)))}
        records = [
            MetricRecord(
                run_id=run_id,
                block_key=row.block_key,
                step=row.step,
                metrics=decode(row.body),
                created_at=row.created_at,
            )
            for row in rows
        ]
        return tuple(sorted(records, key=lambda record: (began[record.block_key], record.step)))
