"""The verifier of route tasks: parts, reward and diagnoses of one completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from evals.reward import route_reward
from evals.suites.route import RouteScore, parse_completion, score_route, score_route_publicly
from evals.suites.route_diagnosis import Links, diagnose_route
from harness.records import FinishReason, Record, Scored

RewardKind = Literal["exact", "partial", "shaped"]


class RewardConfig(Record):
    """Which reward training sees."""

    kind: RewardKind = "exact"
    """``exact``: 0 or 1. ``partial``: prefix credit, 1 when exact. ``shaped``: format, partial, exact and length."""
    max_length_tokens: int = Field(default=4096, ge=1)
    """``shaped`` only: longest completion."""
    length_buffer_tokens: int = Field(default=512, ge=1)
    """``shaped`` only: tokens before the maximum over which the overlong penalty grows."""
    fuzzy_threshold: float | None = Field(default=None, gt=0, le=1)
    """None for the strict station match; a similarity ratio only to repeat a published setting."""

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.length_buffer_tokens > self.max_length_tokens:
            raise ValueError(
                f"length_buffer_tokens={self.length_buffer_tokens} is larger than "
                f"max_length_tokens={self.max_length_tokens}; the buffer is the end of the longest completion"
            )
        return self


@dataclass(frozen=True)
class RouteVerifier:
    """Scores completions under one reward; pure."""

    reward: RewardConfig = RewardConfig()

    def verify(
        self,
        completion: str,
        golds: Sequence[str],
        *,
        finish_reason: FinishReason,
        token_count: int = 0,
        is_link: Links | None = None,
    ) -> Scored:
        """Score one completion against all gold routes.

        Args:
            completion: the whole text that the policy wrote.
            golds: gold routes.
            finish_reason: ``length`` means truncated.
            token_count: completion tokens, for the overlong penalty.
            is_link: adjacency over normalised names, for the diagnosis.

        Source: METHODS §2, Reward; §5, public scorer (columns ``public_partial``, ``public_exact``).
        """
        parsed = parse_completion(completion)
        score = public = RouteScore(partial=0.0, exact=0.0)
        if parsed.answer is not None:
            score = score_route(parsed.answer, list(golds), fuzzy_threshold=self.reward.fuzzy_threshold)
            public = score_route_publicly(parsed.answer, list(golds))
        shaped = route_reward(
            format=float(parsed.is_strict),
            partial=score.partial,
            exact=score.exact,
            length=token_count,
            max_length=self.reward.max_length_tokens,
            buffer=self.reward.length_buffer_tokens,
        )
        rewards: dict[RewardKind, float] = {"exact": score.exact, "partial": score.partial, "shaped": shaped.final}
        return Scored(
            parts={
                "format": float(parsed.is_strict),
                "partial": score.partial,
                "exact": score.exact,
                "truncated": float(finish_reason == "length"),
                "public_partial": public.partial,
                "public_exact": public.exact,
            },
            reward=rewards[self.reward.kind],
            diagnoses=diagnose_route(parsed, golds, finish_reason=finish_reason, is_link=is_link),
        )
