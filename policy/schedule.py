"""Learning-rate schedules as pure functions of the absolute update, so that a resumed run meets the same rates.

Torch-free.
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from harness.records import Record
from policy.config import RlConfig, SftConfig
from policy.config_training import warmup_updates

ScheduleKind = Literal["constant", "linear", "cosine"]


class Schedule(Record):
    """How the rate moves over the updates of one life (reinforcement learning) or one stage (SFT).

    Everything is an absolute number of updates, resolved once: a checkpoint carries it, and a block that goes on
    from there must have the same.
    """

    kind: ScheduleKind = "constant"
    """What follows the warmup."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the rate rises: update ``i`` of them runs at ``(i + 1) / warmup_updates``."""
    total_updates: int = Field(default=0, ge=0)
    """Updates of the whole life or stage; 0 where no end is known, which a constant rate does not need."""

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.kind != "constant" and self.total_updates == 0:
            raise ValueError(f"a {self.kind} schedule needs total_updates; got 0")
        return self

    def is_same_course(self, other: Schedule) -> bool:
        """Whether both give every update the same rate; the end of a constant rate is only informative."""
        if self.kind == "constant":
            return (self.kind, self.warmup_updates) == (other.kind, other.warmup_updates)
        return self == other

    def share(self, update: int) -> float:
        """Share of the peak rate at an update, from 0.

        Source: METHODS §2, SFT (cosine, warmup 0.05) and DAPO (constant, warmup resolved once); differs: the first
        update runs at ``1 / warmup_updates`` of the peak, not at 0.
        """
        if update < self.warmup_updates:
            return (update + 1) / self.warmup_updates
        if self.kind == "constant":
            return 1.0
        gone = (update - self.warmup_updates) / max(1, self.total_updates - self.warmup_updates)
        gone = min(1.0, gone)
        return 1.0 - gone if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * gone))


def rl_schedule(config: RlConfig) -> Schedule:
    """The schedule of a policy's whole life of reinforcement learning; equal in all of its blocks."""
    steps = config.lifecycle_rollout_steps or 0
    return Schedule(
        kind="constant",
        warmup_updates=config.resolved_warmup_updates,
        total_updates=steps * config.updates_per_rollout_step,
    )


def sft_schedule(config: SftConfig, *, records: int) -> Schedule:
    """The schedule of one SFT stage.

    Args:
        config: of the stage.
        records: in one epoch.
    """
    total = sft_updates(config, records=records)
    return Schedule(
        kind=config.schedule,
        warmup_updates=warmup_updates(config.warmup_ratio, total),
        total_updates=total,
    )


def sft_updates(config: SftConfig, *, records: int) -> int:
    """Updates of a stage: all epochs as one stream, cut into batches; only the last may be short."""
    return math.ceil(config.epochs * records / config.batch_size)
