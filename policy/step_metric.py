"""What one rollout step measured, as a record."""

from __future__ import annotations

import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field, JsonValue

from harness.records import Record, Scored
from policy.advantage import is_all_equal
from policy.rollout_record import GroupFate, RolloutBatch

VARYING = ("rollout_s", "update_s", "rollout_tokens_per_s", "training_tokens_per_s", "peak_memory_mb")
"""Fields of :class:`StepMetrics` that differ between equal runs: seconds, what is divided by them, and memory."""


class StepMetrics(Record):
    """Numbers of one rollout step; all but those that :data:`VARYING` names are equal in equal runs."""

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
    signal_share: float = 0.0
    """Groups whose rewards differ over all sampled groups, whether dynamic sampling is on or off."""
    attempts: int
    unscored_attempts: int
    reward_mean: float
    """Over the scored attempts of the first draw: an unselected sample of the policy under its harness."""
    reward_parts: dict[str, float] = Field(default_factory=dict)
    """Mean of every named part of the verdict over the same attempts; a part that some lack is a mean over those that
    have it."""
    exact_mean: float
    """Share of exact answers over the same attempts."""
    trained_reward_mean: float
    completion_tokens_mean: float
    truncated_share: float
    sampled_tokens: int = 0
    """Tokens of all attempts."""
    dropped_tokens: int = 0
    """Of these, tokens spent on groups that were dropped for want of signal."""
    surplus_tokens: int = 0
    """Of these, tokens spent on groups with signal beyond the batch."""
    losses: tuple[float, ...]
    """One per update."""
    grad_norms: tuple[float, ...]
    """One per update, before clipping."""
    trained_tokens: int = 0
    """Tokens of the loss."""
    entropy: float
    """Mean over trained tokens, nats."""
    clip_share: float
    """Share of trained tokens whose ratio was clipped, one way or another."""
    clip_low_share: float = 0.0
    """Share of trained tokens clipped at ``1 - clip_low``."""
    clip_high_share: float = 0.0
    """Share of trained tokens clipped at ``1 + clip_high``."""
    dual_clip_share: float = 0.0
    """Share of trained tokens clipped at ``dual_clip``."""
    kl: float
    """Mean k3 divergence from the reference over trained tokens; 0 without a reference."""
    padding_share: float = 0.0
    """Padded positions over all positions of the training forward passes."""
    learning_rate: float
    """Of the last update."""
    rollout_s: float
    """Sampling and scoring."""
    update_s: float
    """From the end of sampling to the last update."""
    rollout_tokens_per_s: float = 0.0
    """Sampled tokens over ``rollout_s``; large when the batch was found in the ledger."""
    training_tokens_per_s: float = 0.0
    """Trained tokens over ``update_s``."""
    peak_memory_mb: float = 0.0
    """Most memory so far: of the process on CPU (its whole life), of the GPU during this step on CUDA."""

    @property
    def deterministic(self) -> dict[str, JsonValue]:
        """Every field that equal runs share; :data:`VARYING` names the others."""
        values: dict[str, JsonValue] = self.model_dump(mode="json", exclude=set(VARYING))
        return values

    @property
    def curves(self) -> dict[str, float]:
        """Every number by name, for a tracker: parts as ``reward/<part>``, the updates' losses and norms as means."""
        named: dict[str, float] = {f"reward/{name}": value for name, value in self.reward_parts.items()}
        for name, value in self.model_dump(exclude={"step", "policy_id", "reward_parts"}).items():
            named[name] = _mean(value) if isinstance(value, tuple) else float(value)
        return named


class PeakMemory:
    """The most memory that a process, or its GPU, has held."""

    def __init__(self, *, is_cuda: bool) -> None:
        """Watch the GPU when ``is_cuda``, else this process."""
        self._is_cuda = is_cuda

    def restart(self) -> None:
        """Begin a new peak, where that can be done: the system keeps a process' own for its whole life."""
        if self._is_cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()

    def peak_mb(self) -> float:
        """In MB (10^6 bytes)."""
        if self._is_cuda:
            import torch

            return float(torch.cuda.max_memory_allocated()) / 1e6
        unit = 1 if sys.platform == "darwin" else 1024  # Linux counts in KiB, macOS in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class UpdateTally:
    """Sums over the micro-batches of one rollout step."""

    def __init__(self) -> None:
        """Start at zero."""
        self.losses: list[float] = []
        self.grad_norms: list[float] = []
        self.sums: defaultdict[str, float] = defaultdict(float)

    def add(self, update: int, loss: float, **sums: float) -> None:
        """Add one micro-batch.

        Args:
            update: of the rollout step, from 0.
            loss: the micro-batch's part of the update's loss.
            sums: ``tokens`` of the loss; over them ``entropy``, ``kl`` and the clips ``low``, ``high``, ``dual``;
                ``positions`` of the forward pass and how many are ``padded``.
        """
        if update == len(self.losses):
            self.losses.append(0.0)
        self.losses[update] += loss
        for name, value in sums.items():
            self.sums[name] += value

    def summed(self, sum_over_processes: Callable[[list[float]], list[float]]) -> UpdateTally:
        """The tally of all training processes; gradient norms are those of all already."""
        names, count = sorted(self.sums), len(self.losses)
        totals = sum_over_processes([*self.losses, *(self.sums[name] for name in names)])
        whole = UpdateTally()
        whole.losses, whole.grad_norms = totals[:count], self.grad_norms
        whole.sums.update(zip(names, totals[count:], strict=True))
        return whole

    def metrics(
        self,
        batch: RolloutBatch,
        *,
        tolerance: float,
        learning_rate: float,
        rollout_s: float,
        update_s: float,
        peak_memory_mb: float,
    ) -> StepMetrics:
        """The record of a rollout step whose updates have all been made.

        Args:
            batch: what was sampled.
            tolerance: rewards closer than this are equal.
            learning_rate: of the last update.
            rollout_s: seconds of sampling.
            update_s: seconds of training.
            peak_memory_mb: see :class:`PeakMemory`.
        """
        sampled = sum(group.sampled_tokens for group in batch.groups)
        return StepMetrics(
            step=batch.step,
            policy_id=batch.policy_id,
            **_group_counts(batch, tolerance),
            **_attempt_means(batch),
            sampled_tokens=sampled,
            dropped_tokens=_tokens(batch, "no_signal"),
            surplus_tokens=_tokens(batch, "surplus"),
            losses=tuple(self.losses),
            grad_norms=tuple(self.grad_norms),
            **self._shares(),
            learning_rate=learning_rate,
            rollout_s=rollout_s,
            update_s=update_s,
            rollout_tokens_per_s=_rate(sampled, rollout_s),
            training_tokens_per_s=_rate(self.sums["tokens"], update_s),
            peak_memory_mb=peak_memory_mb,
        )

    def _shares(self) -> dict[str, Any]:
        sums = self.sums
        tokens, positions = max(sums["tokens"], 1), max(sums["positions"], 1)
        return {
            "trained_tokens": int(sums["tokens"]),
            "entropy": sums["entropy"] / tokens,
            "clip_share": (sums["low"] + sums["high"] + sums["dual"]) / tokens,
            "clip_low_share": sums["low"] / tokens,
            "clip_high_share": sums["high"] / tokens,
            "dual_clip_share": sums["dual"] / tokens,
            "kl": sums["kl"] / tokens,
            "padding_share": sums["padded"] / positions,
        }


def _group_counts(batch: RolloutBatch, tolerance: float) -> dict[str, Any]:
    rewards = [[verdict.reward for verdict in group.scored] for group in batch.groups]
    signal = sum(len(group) > 1 and not is_all_equal(group, tolerance) for group in rewards)
    return {
        "sampled_groups": len(batch.groups),
        "dropped_groups": batch.count("no_signal"),
        "replaced_groups": sum(group.draw > 0 for group in batch.trained),
        "surplus_groups": batch.count("surplus"),
        "unscored_groups": batch.count("unscored"),
        "trained_groups": len(batch.trained),
        "signal_share": signal / len(batch.groups),
    }


def _attempt_means(batch: RolloutBatch) -> dict[str, Any]:
    attempts = [attempt for group in batch.groups for attempt in group.attempts]
    first = [verdict for group in batch.groups if group.draw == 0 for verdict in group.scored]
    trained = [verdict for group in batch.trained for verdict in group.scored]
    answered = [attempt for attempt in attempts if attempt.token_ids]
    parts = _part_means(first)
    return {
        "attempts": len(attempts),
        "unscored_attempts": sum(group.unscored_count for group in batch.groups),
        "reward_mean": _mean([verdict.reward for verdict in first]),
        "reward_parts": parts,
        "exact_mean": parts["exact"],
        "trained_reward_mean": _mean([verdict.reward for verdict in trained]),
        "completion_tokens_mean": _mean([attempt.sampled_count for attempt in answered]),
        "truncated_share": _mean([attempt.is_truncated for attempt in answered]),
    }


def _part_means(verdicts: Sequence[Scored]) -> dict[str, float]:
    names = sorted({name for verdict in verdicts for name in verdict.parts})
    if not names:
        raise ValueError("no attempt to average; a mean of nothing is not a number")
    return {name: _mean([verdict.parts[name] for verdict in verdicts if name in verdict.parts]) for name in names}


def _tokens(batch: RolloutBatch, fate: GroupFate) -> int:
    return sum(group.sampled_tokens for group in batch.groups if group.fate == fate)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("no attempt to average; a mean of nothing is not a number")
    return sum(values) / len(values)
