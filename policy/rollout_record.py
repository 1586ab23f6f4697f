"""What one rollout step sampled, as one record: the unit of the work ledger."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from harness.records import FinishReason, ImageFile, Record, Scored, Trace, Usage, Verdict, content_id

GroupFate = Literal["trained", "no_signal", "unscored", "surplus"]


def sampled_count(token_ids: tuple[int, ...], token_mask: tuple[int, ...]) -> int:
    """Tokens of a completion that the policy sampled; an empty mask means all."""
    return sum(token_mask) if token_mask else len(token_ids)


class RolloutAttempt(Record):
    """One rollout: the sampled ids, the only ids training may use, and the verdict."""

    text: str
    finish_reason: FinishReason
    token_ids: tuple[int, ...]
    seed: int
    verdict: Verdict
    """With every named part of the reward."""
    token_mask: tuple[int, ...] = ()
    """Per token: 1 where the policy sampled it, 0 where a tool wrote it; empty means all were sampled."""
    log_probabilities: tuple[float, ...] = ()
    """Per token, as the engine gave them; kept only where the loss corrects for the engine."""
    policy_id: str = ""
    """Weights that answered, as the engine knows them; empty where it cannot know."""

    @property
    def is_scored(self) -> bool:
        """Whether it has a reward; without one it is in no baseline and no loss."""
        return isinstance(self.verdict, Scored)

    @property
    def is_truncated(self) -> bool:
        """Whether it ran into the token limit."""
        return self.finish_reason == "length"

    @property
    def sampled_count(self) -> int:
        """Tokens that the policy itself sampled."""
        return sampled_count(self.token_ids, self.token_mask)


class RolloutGroup(Record):
    """The attempts of one task."""

    task_id: str
    position: int
    """Where the task stood in the task stream."""
    draw: int
    """0 for the first draw of a step, then one more for every replacement draw."""
    prompt_token_ids: tuple[int, ...]
    attempts: tuple[RolloutAttempt, ...]
    fate: GroupFate
    images: tuple[ImageFile, ...] = ()
    """Shown in the prompt; the loss processes them again, the record keeps no pixels."""
    importance: float = 1.0
    """Of the task's draw; multiplies the clipped surrogate of its attempts."""

    @property
    def scored(self) -> tuple[Scored, ...]:
        """Verdicts of the scored attempts."""
        return tuple(attempt.verdict for attempt in self.attempts if isinstance(attempt.verdict, Scored))

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled for all its attempts."""
        return sum(attempt.sampled_count for attempt in self.attempts)

    @property
    def unscored_count(self) -> int:
        """Attempts lost to infrastructure."""
        return len(self.attempts) - len(self.scored)


class RolloutBatch(Record):
    """One rollout step: every group sampled, trained on or not."""

    step: int
    policy_id: str
    harness_id: str
    groups: tuple[RolloutGroup, ...]
    next_position: int
    """Of the task stream after this step."""
    stop: str = ""
    """Why no full batch was found; training must not go on."""

    @property
    def trained(self) -> tuple[RolloutGroup, ...]:
        """Groups that the updates of this step are made from, in the order they were drawn."""
        return tuple(group for group in self.groups if group.fate == "trained")

    def count(self, fate: GroupFate) -> int:
        """Groups that met one fate."""
        return sum(group.fate == fate for group in self.groups)

    def traces(self) -> tuple[Trace, ...]:
        """Every attempt as a trace, dropped groups included: they tell what the policy cannot do yet."""
        return tuple(
            self._trace(group, index, attempt) for group in self.groups for index, attempt in enumerate(group.attempts)
        )

    def _trace(self, group: RolloutGroup, index: int, attempt: RolloutAttempt) -> Trace:
        identity: dict[str, JsonValue] = {
            "policy_id": self.policy_id,
            "harness_id": self.harness_id,
            "task_id": group.task_id,
            "purpose": "rollout",
            "step": self.step,
            "position": group.position,
            "replicate": index,
            "seed": attempt.seed,
        }
        tokens = attempt.sampled_count
        return Trace(
            trace_id=content_id(identity, prefix="trace"),
            task_id=group.task_id,
            split="train",
            policy_id=self.policy_id,
            harness_id=self.harness_id,
            purpose="rollout",
            replicate=index,
            completion=attempt.text,
            finish_reason=attempt.finish_reason,
            verdict=attempt.verdict,
            usage=Usage(prompt_tokens=len(group.prompt_token_ids), completion_tokens=tokens),
            token_count=tokens,
            seed=attempt.seed,
        )
