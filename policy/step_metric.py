"""What one rollout step measured, as a record."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Record
from policy.rollout_record import RolloutBatch


class StepMetrics(Record):
    """Numbers of one rollout step; the seconds are the only ones that differ between equal runs."""

    step: int
    """Absolute number of the rollout step."""
    policy_id: str
    """Weights that sampled it."""
    sampled_groups: int
    dropped_groups: int
    """Groups whose rewards were all equal."""
    replaced_groups: int
    """Trained groups that came from a replacement draw."""
    surplus_groups: int
    """Groups with signal that a replacement draw found beyond the batch."""
    unscored_groups: int
    trained_groups: int
    attempts: int
    unscored_attempts: int
    reward_mean: float
    """Over the scored attempts of the first draw: an unselected sample of the policy under its harness."""
    exact_mean: float
    """Share of exact answers over the same attempts."""
    trained_reward_mean: float
    completion_tokens_mean: float
    truncated_share: float
    losses: tuple[float, ...]
    """One per update."""
    grad_norms: tuple[float, ...]
    """One per update, before clipping."""
    entropy: float
    """Mean over trained tokens, nats."""
    clip_share: float
    """Share of trained tokens whose ratio was clipped."""
    kl: float
    """Mean k3 divergence from the reference over trained tokens; 0 without a reference."""
    learning_rate: float
    """Of the last update."""
    rollout_s: float
    update_s: float


class UpdateTally:
    """Sums over the micro-batches of one rollout step."""

    def __init__(self) -> None:
        """Start at zero."""
        self.losses: list[float] = []
        self.grad_norms: list[float] = []
        self.tokens = 0.0
        self.entropy = 0.0
        self.clipped = 0.0
        self.kl = 0.0

    def add(self, *, update: int, loss: float, tokens: float, entropy: float, clipped: float, kl: float) -> None:
        """Add one micro-batch: its part of the update's loss, and sums over its tokens."""
        if update == len(self.losses):
            self.losses.append(0.0)
        self.losses[update] += loss
        self.tokens += tokens
        self.entropy += entropy
        self.clipped += clipped
        self.kl += kl

    def metrics(self, batch: RolloutBatch, *, learning_rate: float, rollout_s: float, update_s: float) -> StepMetrics:
        """The record of a rollout step whose updates have all been made."""
        attempts = [attempt for group in batch.groups for attempt in group.attempts]
        first = [verdict for group in batch.groups if group.draw == 0 for verdict in group.scored]
        trained = [verdict for group in batch.trained for verdict in group.scored]
        answered = [attempt for attempt in attempts if attempt.token_ids]
        tokens = max(self.tokens, 1.0)
        return StepMetrics(
            step=batch.step,
            policy_id=batch.policy_id,
            sampled_groups=len(batch.groups),
            dropped_groups=batch.count("no_signal"),
            replaced_groups=sum(group.draw > 0 for group in batch.trained),
            surplus_groups=batch.count("surplus"),
            unscored_groups=batch.count("unscored"),
            trained_groups=len(batch.trained),
            attempts=len(attempts),
            unscored_attempts=sum(group.unscored_count for group in batch.groups),
            reward_mean=_mean([verdict.reward for verdict in first]),
            exact_mean=_mean([verdict.parts["exact"] for verdict in first]),
            trained_reward_mean=_mean([verdict.reward for verdict in trained]),
            completion_tokens_mean=_mean([len(attempt.token_ids) for attempt in answered]),
            truncated_share=_mean([attempt.finish_reason == "length" for attempt in answered]),
            losses=tuple(self.losses),
            grad_norms=tuple(self.grad_norms),
            entropy=self.entropy / tokens,
            clip_share=self.clipped / tokens,
            kl=self.kl / tokens,
            learning_rate=learning_rate,
            rollout_s=rollout_s,
            update_s=update_s,
        )


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("no attempt to average; a mean of nothing is not a number")
    return sum(values) / len(values)
