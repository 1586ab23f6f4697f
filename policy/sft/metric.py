"""What one SFT update measured, as a record. Torch-free."""

from __future__ import annotations

from collections.abc import Callable

from harness.records import Record


class SftStepMetrics(Record):
    """Numbers of one update; the seconds and rates are the only ones that differ between equal runs."""

    step: int
    """Number of the update within its stage, from 0."""
    loss: float
    """Mean over the completion tokens of the update, nats."""
    records: int
    loss_tokens: int
    """Completion tokens, the end tokens included: those that the loss counts."""
    tokens: int
    """Prompt and completion tokens."""
    padding_share: float
    """Of the computed cells, those that hold no token of a record."""
    learning_rate: float
    grad_norm: float
    """Over all trained weights, before clipping."""
    update_s: float
    tokens_per_s: float
    """Prompt and completion tokens over ``update_s``."""


class SftTally:
    """Sums over the micro-batches of one update, as far as this process makes them."""

    def __init__(self) -> None:
        """Start at zero."""
        self.loss = 0.0
        self.loss_tokens = 0
        self.tokens = 0
        self.cells = 0
        self.grad_norm = 0.0

    def add(self, *, loss: float, loss_tokens: int, tokens: int, cells: int) -> None:
        """Add one micro-batch: its part of the update's loss, its tokens and its cells."""
        self.loss += loss
        self.loss_tokens += loss_tokens
        self.tokens += tokens
        self.cells += cells

    def metrics(
        self,
        *,
        step: int,
        records: int,
        learning_rate: float,
        update_s: float,
        gather: Callable[[list[float]], list[float]],
    ) -> SftStepMetrics:
        """The record of an update that has been made.

        Args:
            step: number of the update in its stage.
            records: of the whole update.
            learning_rate: of the update.
            update_s: seconds it took.
            gather: sums numbers over all processes.
        """
        loss, loss_tokens, tokens, cells = gather([self.loss, self.loss_tokens, self.tokens, self.cells])
        return SftStepMetrics(
            step=step,
            loss=loss,
            records=records,
            loss_tokens=int(loss_tokens),
            tokens=int(tokens),
            padding_share=1 - tokens / cells,
            learning_rate=learning_rate,
            grad_norm=self.grad_norm,
            update_s=update_s,
            tokens_per_s=tokens / update_s if update_s > 0 else 0.0,
        )
