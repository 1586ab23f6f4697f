"""What the store keeps, as frozen records: runs, checkpoints, pairs, decisions, steps, ledger entries."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, JsonValue, field_validator

from harness.records import Record, content_id
from memory.errors import BadId

RunStatus = Literal["created", "running", "finished", "failed", "stopped"]

Outcome = Literal["accept", "tie", "reject", "refuse"]
"""``refuse``: the gate could not decide, for example because too many attempts were unscored."""

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

ID_CHARACTERS = 120
"""Longest id; file systems end at 255 bytes, and temporary names are longer than the id."""

_SHOWN_CHARACTERS = 60


def is_safe_id(value: str) -> bool:
    """Whether ``value`` can name a folder."""
    return len(value) <= ID_CHARACTERS and _SAFE_ID.fullmatch(value) is not None


def check_id(value: str) -> str:
    """Return ``value`` if it can name a folder, else raise.

    Raises:
        BadId: it is empty or too long, or has characters that a folder name must not have.
    """
    if not is_safe_id(value):
        shown = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
        raise BadId(
            f"id {shown!r} is not a folder name; use at most {ID_CHARACTERS} letters, digits, '.', '_' and '-', "
            "and begin with a letter or digit"
        )
    return value


class Amendment(Record):
    """One change of a recorded setting during a run's life."""

    key: str
    """Dotted key of the configuration."""
    before: JsonValue
    after: JsonValue
    changed_at: str
    """UTC, ISO 8601."""


class RunRecord(Record):
    """One run: what it is, what identifies it, where it stands."""

    run_id: str
    strategy: str
    suite: str
    config: dict[str, JsonValue]
    """The resolved config, secrets removed."""
    identity: dict[str, JsonValue]
    """Resolved config, seeds, suite fingerprint, code version: what a resume must match."""
    amendments: tuple[Amendment, ...] = ()
    """Settings changed since the run began, oldest first; ``config`` and ``identity`` hold the last values."""
    status: RunStatus = "created"
    summary: dict[str, JsonValue] | None = None
    created_at: str = ""
    """UTC, ISO 8601; the store fills it in."""
    updated_at: str = ""

    _run_id = field_validator("run_id")(check_id)


class HarnessVersion(Record):
    """Where a harness version comes from; its content is read with ``lineage.harness``."""

    harness_id: str
    family: str
    parents: tuple[str, ...] = ()
    note: str = ""
    created_at: str = ""


class CheckpointRecord(Record):
    """A policy's weights (and optimizer state) on disk, under ``home/checkpoints/<checkpoint_id>/``."""

    checkpoint_id: str
    parent_id: str | None = None
    base: str = ""
    """Name of the base model."""
    kind: Literal["full", "adapter"] = "full"
    rollout_steps: int = 0
    """Rollout steps trained since the base, all blocks together."""
    updates: int = 0
    """Optimizer updates since the base."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of every file by relative POSIX path; computed from the folder when left empty."""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    created_at: str = ""

    _checkpoint_id = field_validator("checkpoint_id")(check_id)


class PairRecord(Record):
    """A deployed and evaluated pair (θ, Φ), a node of a run's lineage."""

    run_id: str
    checkpoint_id: str
    harness_id: str
    parents: tuple[str, ...] = ()
    """Pair ids this one was made from."""
    round_number: int = 0
    val_score: float | None = None
    note: str = ""

    @property
    def pair_id(self) -> str:
        """Content hash of checkpoint and harness."""
        return content_id({"checkpoint_id": self.checkpoint_id, "harness_id": self.harness_id}, prefix="pair")


class DecisionRecord(Record):
    """One gate decision with both scores and the paired statistics."""

    run_id: str
    round_number: int
    name: str = "gate"
    """Tells several decisions of one round apart."""
    outcome: Outcome
    checkpoint_id: str
    incumbent_id: str
    """Harness id of the incumbent."""
    candidate_id: str
    """Harness id of the candidate."""
    incumbent_score: float | None = None
    candidate_score: float | None = None
    reason: str = ""
    statistics: dict[str, JsonValue] = Field(default_factory=dict)
    evaluations: tuple[str, ...] = ()
    """Evaluation ids the scores come from, incumbent first."""


class StepRecord(Record):
    """One executed graph node: what it read, wrote, called and cost."""

    run_id: str
    number: int
    """Order of execution inside the run, from 0."""
    node: str
    read: dict[str, JsonValue] = Field(default_factory=dict)
    wrote: dict[str, JsonValue] = Field(default_factory=dict)
    calls: tuple[dict[str, JsonValue], ...] = ()
    """Model and role calls with their inputs, in order."""
    evaluations: tuple[str, ...] = ()
    tokens: int = 0
    cost_usd: float = 0.0
    started_at: str = ""
    """UTC, ISO 8601."""
    seconds: float = 0.0


class MetricRecord(Record):
    """What one step of a training block measured."""

    run_id: str
    block_key: str
    """Ledger key of the block."""
    step: int
    """Absolute rollout step of an RL block."""
    metrics: dict[str, JsonValue]
    created_at: str = ""
    """UTC, ISO 8601."""


class LedgerEntry(Record):
    """One piece of finished work; the wrapper keeps a result of null, 0.0 or [] apart from no result."""

    key: str
    kind: str
    result: JsonValue
    created_at: str = ""
