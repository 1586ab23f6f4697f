"""What every executor does, and the parts they share. Torch-free until a result is read."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

from policy.errors import TrainerDied, TrainerFailed
from policy.job import AnyJob, SftJob, TrainingJob

if TYPE_CHECKING:
    from policy.block import BlockResult
    from policy.sft.block import SftResult

Progress = Callable[[Any], None]
"""Takes every rollout step, or every SFT update, as it is trained."""
OnDeath = Callable[[TrainerDied, int], None]
"""Takes the death of a trainer and the number of the try that follows."""


class Executor(Protocol):
    """Trains blocks somewhere; the result is read back from the ledger and the checkpoint folder."""

    def warm(self) -> None:
        """Begin, in the background, what a first block would wait for; costs nothing where there is nothing."""
        ...

    @overload
    def run(
        self, job: TrainingJob, progress: Progress | None = None, *, on_death: OnDeath | None = None
    ) -> BlockResult: ...

    @overload
    def run(self, job: SftJob, progress: Progress | None = None, *, on_death: OnDeath | None = None) -> SftResult: ...

    def run(
        self, job: AnyJob, progress: Progress | None = None, *, on_death: OnDeath | None = None
    ) -> BlockResult | SftResult:
        """Train a block, or finish or return one that was begun before.

        Args:
            job: the block.
            progress: called after every step made in this call; after a trainer's death the steps since the last
                in-block checkpoint come twice.
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


class BaseExecutor:
    """What all executors share: finished work is found, the rest is trained by the subclass's ``_train``."""

    def warm(self) -> None:
        """Nothing to begin."""

    def close(self) -> None:
        """Nothing to end."""

    @overload
    def run(
        self, job: TrainingJob, progress: Progress | None = None, *, on_death: OnDeath | None = None
    ) -> BlockResult: ...

    @overload
    def run(self, job: SftJob, progress: Progress | None = None, *, on_death: OnDeath | None = None) -> SftResult: ...

    def run(
        self, job: AnyJob, progress: Progress | None = None, *, on_death: OnDeath | None = None
    ) -> BlockResult | SftResult:
        """Train a block; see :class:`Executor`."""
        found = self._find(job)
        if found is not None:
            return found
        self._train(job, progress, on_death)
        found = self._find(job)
        if found is None:
            raise TrainerFailed(
                f"the trainer finished {job.key} and this process finds no result of it in {job.home}; expected one "
                "home on a file system that both can reach; check the path and its mount"
            )
        return found

    def _find(self, job: AnyJob) -> BlockResult | SftResult | None:
        with job.store.opened() as ledger:
            return job.find_result(ledger)

    def _train(self, job: AnyJob, progress: Progress | None, on_death: OnDeath | None) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
