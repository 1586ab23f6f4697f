"""What every executor does, and the parts they share. Torch-free until a result is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from policy.errors import TrainerDied, TrainerFailed
from policy.job import TrainingJob

if TYPE_CHECKING:
    from policy.block import BlockResult
    from policy.step_metric import StepMetrics

Progress = Callable[["StepMetrics"], None]
"""Takes every rollout step as it is trained."""
OnDeath = Callable[[TrainerDied, int], None]
"""Takes the death of a trainer and the number of the try that follows."""


class Executor(Protocol):
    """Trains blocks somewhere; the result is read back from the ledger and the checkpoint folder."""

    def warm(self) -> None:
        """Begin, in the background, what a first block would wait for; costs nothing where there is nothing."""
        ...

    def run(
        self, job: TrainingJob, progress: Progress | None = None, *, on_death: OnDeath | None = None
    ) -> BlockResult:
        """Train a block, or finish or return one that was begun before.

        Args:
            job: the block.
            progress: called after every rollout step made in this call; after a trainer's death the steps since the
                last in-block checkpoint come twice.
            on_death: called before another try.

        Raises:
            TrainerDied: the training process died as often as the configuration has tries.
            TrainerOutOfMemory: the same, and the last one for want of memory.
            TrainingError: a failure that another try would meet again.
        """
        ...

    def close(self) -> None:
        """End every process that this executor started."""
        ...


class Closing:
    """An executor as a context manager."""

    def warm(self) -> None:
        """Nothing to begin."""

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def recorded_result(job: TrainingJob) -> BlockResult | None:
    """The result of a job that was finished before, or None."""
    from policy.block import find_result

    with job.store.opened() as ledger:
        return find_result(job.key, Path(job.store.home) / "checkpoints", ledger)


def result_of(job: TrainingJob) -> BlockResult:
    """The result of a job whose training process said that it is done.

    Raises:
        TrainerFailed: this process finds none, so the two do not use the same store.
    """
    found = recorded_result(job)
    if found is None:
        raise TrainerFailed(
            f"the trainer finished block {job.key} and this process finds no result of it in {job.store.home}; "
            "expected one home on a file system that both can reach; check the path and its mount"
        )
    return found


def with_tries(tries: int, attempt: Callable[[], None], on_death: OnDeath | None) -> None:
    """Attempt a job again when its process dies; the block goes on from its last checkpoint.

    Args:
        tries: how often in all.
        attempt: trains; raises TrainerDied when the process is gone.
        on_death: called before another try.
    """
    for number in range(1, tries + 1):
        try:
            return attempt()
        except TrainerDied as death:
            if number == tries:
                raise
            if on_death is not None:
                on_death(death, number + 1)
