"""Train in a child process that stays warm between blocks; its death is a typed failure, and the block is retried."""

from __future__ import annotations

from contextlib import suppress

from policy.config_executor import SubprocessConfig
from policy.errors import TrainerDied, TrainerFailed
from policy.executor.base import BaseExecutor, OnDeath, Progress, with_tries
from policy.executor.worker_process import WorkerProcess, follow, worker_command
from policy.job import AnyJob


class SubprocessExecutor(BaseExecutor):
    """One warm child.

    Args:
        config: tries and limits.
    """

    def __init__(self, config: SubprocessConfig) -> None:
        self._config = config
        self._worker: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child, while there is one."""
        return self._worker.process.pid if self._worker else None

    def warm(self) -> None:
        """Start the child now; it imports the training libraries while the caller does something else."""
        if self._worker is None:
            self._worker = WorkerProcess(worker_command(memory_limit_mb=self._config.memory_limit_mb))

    def close(self) -> None:
        """End the child."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _train(self, job: AnyJob, progress: Progress | None, on_death: OnDeath | None) -> None:
        with_tries(self._config.tries, lambda: self._attempt(job, progress), on_death)

    def _attempt(self, job: AnyJob, progress: Progress | None) -> None:
        self.warm()
        worker, limit = self._worker, self._config.memory_limit_mb
        assert worker is not None
        is_usable = False  # a child in the middle of a job takes no other, also after Ctrl-C
        try:
            with suppress(BrokenPipeError):  # its end is read with its reports
                worker.send(job.model_dump_json())
            within = f" under executor.memory_limit_mb={limit}" if limit else ""
            failure = follow(worker, job, progress, silence_s=self._config.silence_timeout_s, within=within)
            # After these its memory, and perhaps its CUDA context, is beyond repair.
            is_usable = not isinstance(failure, (TrainerDied, TrainerFailed))
        finally:
            if not is_usable:
                self.close()
        if failure is not None:
            raise failure
