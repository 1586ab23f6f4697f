"""What a block reports while it trains, passed on as it happens: to the listener, and to the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphs.recorder import Recorder
from memory.store import Store
from policy.errors import TrainerDied
from policy.sft.metric import SftStepMetrics

if TYPE_CHECKING:
    from policy.step_metric import StepMetrics


class TrainingWatch:
    """The callbacks of one block.

    Args:
        store: keeps the measurements of every step.
        run_id: whose they are.
        block_key: ledger key of the block.
        recorder: tells the listener.
        first_step: number of the block's first step.
        total: steps of the block; 0 where it is not known before.
    """

    def __init__(
        self, store: Store, run_id: str, block_key: str, recorder: Recorder, *, first_step: int, total: int
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._block_key = block_key
        self._recorder = recorder
        self._first_step = first_step
        self._total = total
        self.steps = 0
        """Made in this sitting."""
        self.deaths: list[str] = []

    def step(self, step: StepMetrics | SftStepMetrics) -> None:
        """A rollout step, or an SFT update, is trained."""
        self.steps += 1
        self._add(step)
        self._recorder.tell("progress", _said(step), done=step.step + 1 - self._first_step, total=self._total)

    def keep(self, steps: Sequence[StepMetrics | SftStepMetrics]) -> None:
        """The block's steps are all known: those that no callback told, of work found in the ledger, are stored too."""
        for step in steps:
            self._add(step)

    def _add(self, step: StepMetrics | SftStepMetrics) -> None:
        self._store.metrics.add(self._run_id, self._block_key, step.step, step.model_dump(mode="json"))

    def death(self, death: TrainerDied, number: int) -> None:
        """The trainer is gone and another takes over."""
        self.deaths.append(str(death))
        self._recorder.tell("progress", f"{death}; try {number} goes on from the last checkpoint")


def _said(step: StepMetrics | SftStepMetrics) -> str:
    if isinstance(step, SftStepMetrics):
        return f"loss {step.loss:.4f}"
    return f"reward {step.reward_mean:.3f}, exact {step.exact_mean:.3f}, {step.dropped_groups} groups dropped"
