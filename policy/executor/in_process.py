"""Train in the calling process: for tests and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.executor.base import Closing, OnDeath, Progress, result_of
from policy.job import TrainingJob
from policy.worker import train_job

if TYPE_CHECKING:
    from policy.block import BlockResult


class InProcessExecutor(Closing):
    """No other process: a crash of the trainer is a crash of the caller, and nothing is retried."""

    def run(
        self, job: TrainingJob, progress: Progress | None = None, *, on_death: OnDeath | None = None
    ) -> BlockResult:
        """Train a block here; see :class:`policy.executor.base.Executor`."""
        train_job(job, progress)
        return result_of(job)
