"""Train in a child process that stays warm between blocks; its death is a typed failure, and the block is retried."""

from __future__ import annotations

from policy.config_executor import SubprocessConfig
from policy.errors import TrainerDied, TrainerFailed
from policy.executor.base import BaseExecutor, OnDeath, Progress, with_tries
from policy.executor.worker_process import Silence, WorkerProcess, how_it_died, worker_command
from policy.failure import rebuild
from policy.job import AnyJob
from policy.report import JobDone, JobFailed, StepDone


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
        try:
            failure = self._listen(job, progress)
        except BaseException:  # also Ctrl-C: a child in the middle of a job takes no other
            self.close()
            raise
        if isinstance(failure, (TrainerDied, TrainerFailed)):
            self.close()  # its memory, and perhaps its CUDA context, is beyond repair
        if failure is not None:
            raise failure

    def _listen(self, job: AnyJob, progress: Progress | None) -> Exception | None:
        """Send the job and pass its steps on; returns its typed failure, or None when it is done."""
        worker = self._worker
        assert worker is not None
        try:
            worker.send(job.model_dump_json())
            for report in worker.reports(silence_s=self._config.silence_timeout_s):
                if isinstance(report, StepDone) and progress is not None:
                    progress(job.read_step(report.metrics))
                elif isinstance(report, JobFailed):
                    return rebuild(report.failure)
                elif isinstance(report, JobDone):
                    return None
        except BrokenPipeError:
            pass  # its end is read below
        except Silence:
            raise TrainerDied(
                f"the trainer (process {worker.process.pid}) reported nothing for {self._config.silence_timeout_s} s; "
                "it was ended; raise executor.silence_timeout_s if a rollout step takes longer, and resume"
            ) from None
        raise TrainerDied(self._obituary(worker))

    def _obituary(self, worker: WorkerProcess) -> str:
        code = worker.wait()
        limit = self._config.memory_limit_mb
        said = f"; its last words: {' | '.join(list(worker.last_lines)[-3:])}" if worker.last_lines else ""
        within = f" under executor.memory_limit_mb={limit}" if limit else ""
        return (
            f"the trainer (process {worker.process.pid}) {how_it_died(code)}{within}{said}; where memory is short, "
            "lower micro_batch_size or the policy's batch_size, or set gradient_checkpointing; finished rollout steps "
            "are kept: resume"
        )
