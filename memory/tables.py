"""The tables, in SQLAlchemy Core; portable between SQLite and Postgres."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table, Text

SCHEMA_VERSION = 1
"""Raised with every change that an older program could not read; a new table is none, it is added at opening."""

metadata = MetaData()

_ROW_ID = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER autoincrements on SQLite

meta = Table("meta", metadata, Column("name", String, primary_key=True), Column("value", String, nullable=False))

runs = Table(
    "runs",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False, unique=True),
    Column("status", String, nullable=False),
    Column("body", Text, nullable=False),
)

harnesses = Table(
    "harnesses",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("harness_id", String, nullable=False, unique=True),
    Column("body", Text, nullable=False),
    Column("version", Text, nullable=False),
)

run_harnesses = Table(
    "run_harnesses",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False),
    Column("harness_id", String, ForeignKey("harnesses.harness_id"), nullable=False),
    Index("run_harnesses_once", "run_id", "harness_id", unique=True),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("checkpoint_id", String, nullable=False, unique=True),
    Column("body", Text, nullable=False),
)

pairs = Table(
    "pairs",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False),
    Column("pair_id", String, nullable=False),
    Column("checkpoint_id", String, ForeignKey("checkpoints.checkpoint_id"), nullable=False),
    Column("harness_id", String, ForeignKey("harnesses.harness_id"), nullable=False),
    Column("body", Text, nullable=False),
    Index("pairs_once", "run_id", "pair_id", unique=True),
)

decisions = Table(
    "decisions",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False),
    Column("round_number", Integer, nullable=False),
    Column("name", String, nullable=False),
    Column("body", Text, nullable=False),
    Index("decisions_once", "run_id", "round_number", "name", unique=True),
)

traces = Table(
    "traces",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False),
    Column("trace_id", String, nullable=False),
    Column("task_id", String, nullable=False),
    Column("split", String, nullable=False),
    Column("policy_id", String, nullable=False),
    Column("harness_id", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("status", String, nullable=False),
    Column("exact", Float),
    Column("body", Text, nullable=False),
    Index("traces_once", "run_id", "trace_id", unique=True),
    Index("traces_by_id", "trace_id"),
    Index("traces_by_run", "run_id", "row_id"),
    Index("traces_by_purpose", "run_id", "purpose", "row_id"),
    Index("traces_by_task", "run_id", "task_id", "row_id"),
    Index("traces_by_harness", "run_id", "harness_id", "row_id"),
    Index("traces_by_policy", "run_id", "policy_id", "row_id"),
)

ledger = Table(
    "ledger",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False),
    Column("key", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("result", Text, nullable=False),
    Column("created_at", String, nullable=False),
    Index("ledger_once", "run_id", "key", unique=True),
    Index("ledger_by_kind", "run_id", "kind"),
)

steps = Table(
    "steps",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False),
    Column("number", Integer, nullable=False),
    Column("node", String, nullable=False),
    Column("body", Text, nullable=False),
    Index("steps_once", "run_id", "number", unique=True),
)

metrics = Table(
    "metrics",
    metadata,
    Column("row_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False),
    Column("block_key", String, nullable=False),
    Column("step", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", String, nullable=False),
    Index("metrics_once", "run_id", "block_key", "step", unique=True),
)
