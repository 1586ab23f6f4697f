"""Train in the calling process: for tests and notebooks."""

from __future__ import annotations

from policy.executor.base import BaseExecutor, OnDeath, Progress
from policy.job import AnyJob
from policy.worker import train_job


class InProcessExecutor(BaseExecutor):
    """No other process: a crash of the trainer is a crash of the caller, and nothing is retried."""

    def _train(self, job: AnyJob, progress: Progress | None, on_death: OnDeath | None) -> None:
        train_job(job, progress)
