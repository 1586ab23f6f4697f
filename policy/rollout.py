"""Collect one rollout step: sample groups, drop those without signal, replace them until the batch is full.

Source: METHODS §1 (oversampling and filtering) and §2, DAPO, dynamic sampling; differs: a bound on the sampled
groups ends the step instead of sampling for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from harness.model import Harness
from harness.protocols import Prompt, RolloutEngine, WorkLedger
from harness.records import Generation, Sampling, Scored, Task, Unscored, content_id
from harness.render import render
from policy.advantage import is_all_equal, overlong_penalty
from policy.config import RlConfig
from policy.errors import NonFiniteTraining, TooManyUnscored, TrainingError
from policy.rollout_record import GroupFate, RolloutAttempt, RolloutBatch, RolloutGroup, sampled_count
from policy.task_stream import Draw, TaskOrder, derive_seed

Score = Callable[[Task, Generation], Scored | Unscored]
"""Turns one attempt into a verdict; an infrastructure failure is Unscored, never a 0."""

OVERLONG_PART = "overlong"
"""Name of the length penalty among a verdict's parts."""
SCORE_TRIES = 2
MIN_SIGNAL_RATE = 0.25
"""Replacement draws assume that at least this share of groups carries signal."""


@dataclass(frozen=True)
class Collector:
    """Samples rollout batches of one block; everything but the weights stays fixed."""

    engine: RolloutEngine
    harness: Harness
    stream: TaskOrder
    config: RlConfig
    score: Score
    seed: int
    rows_at_once: int
    """Rows that the engine decodes together; a replacement draw may fill them."""
    identity: dict[str, JsonValue] = field(default_factory=dict)
    """What else decides a batch: suite, pool, engine settings; goes into the ledger key."""

    def key(self, step: int, position: int) -> str:
        """Ledger key of one rollout batch under the engine's current weights."""
        config = self.config
        inputs: dict[str, JsonValue] = {
            **self.identity,
            "work": "rollout_batch",
            "purpose": "rollout",
            "replicate": 0,
            "policy_id": self.engine.policy_id,
            "harness_id": self.harness.harness_id,
            "seed": self.seed,
            "step": step,
            "position": position,
            "prompts": config.prompts_per_step,
            "group_size": config.group_size,
            "sampling": [config.temperature, config.top_p, config.max_tokens],
            "dynamic_sampling": config.dynamic_sampling.model_dump(mode="json"),
            "max_unscored_share": config.max_unscored_share,
            "threads": config.threads,
            "order": self.stream.fingerprint,
            "overlong": config.overlong.model_dump(mode="json") if config.overlong else None,
            "keeps_log_probabilities": config.engine_correction_cap is not None,
        }
        return content_id(inputs, prefix="rollouts", length=32)

    def collect(
        self, step: int, position: int, ledger: WorkLedger, progress: Callable[[int], None] | None = None
    ) -> RolloutBatch:
        """The batch of one rollout step: from the ledger when it was sampled before, else sampled and recorded.

        Args:
            step: absolute number of the rollout step.
            position: of the task stream, before this step.
            ledger: keeps the batch; one whole batch is one entry.
            progress: called with the attempts made so far in this step.

        Raises:
            NonFiniteTraining: the scorer returned a reward that is not a number.
            TooManyUnscored: infrastructure failures passed the configured share.
        """
        key = self.key(step, position)
        found = ledger.find(key)
        if found is None:
            batch = self._sample(step, position, progress)
            found = ledger.record(key, kind="rollout_batch", result=batch.model_dump(mode="json"))
        return RolloutBatch.model_validate(found)

    def _sample(self, step: int, position: int, progress: Callable[[int], None] | None) -> RolloutBatch:
        config, dynamic = self.config, self.config.dynamic_sampling
        limit = math.ceil(dynamic.max_groups_factor * config.prompts_per_step)
        wanted = min(limit, math.ceil(config.prompts_per_step * (dynamic.oversample if dynamic.enabled else 1.0)))
        groups: list[RolloutGroup] = []
        seen: set[str] = set()
        draw, missing = 0, config.prompts_per_step
        while missing > 0 and len(groups) < limit:
            drawn, position = self._draw(position, min(wanted, limit - len(groups)), seen)
            if not drawn:
                break
            groups += self._attempt(step, drawn, draw, missing)
            if progress is not None:
                progress(len(groups) * config.group_size)
            missing = config.prompts_per_step - sum(group.fate == "trained" for group in groups)
            wanted, draw = self._next_draw(groups, missing), draw + 1
        self._check_unscored(step, groups)
        return RolloutBatch(
            step=step,
            policy_id=self.engine.policy_id,
            harness_id=self.harness.harness_id,
            groups=tuple(groups),
            next_position=position,
            stop=self._stop_reason(step, groups, missing) if missing > 0 else "",
        )

    def _draw(self, position: int, count: int, seen: set[str]) -> tuple[list[tuple[int, Draw]], int]:
        """Next ``count`` tasks with their positions, and the position after them.

        A task seen in this step is passed over, except where the order draws with replacement: there passing over
        would change the probabilities that its importance weights answer to.
        """
        drawn: list[tuple[int, Draw]] = []
        repeats = self.stream.is_with_replacement
        while len(drawn) < count and (repeats or len(seen) < len(self.stream)):
            draw = self.stream.at(position)
            if repeats or draw.task.task_id not in seen:
                seen.add(draw.task.task_id)
                drawn.append((position, draw))
            position += 1
        return drawn, position

    def _attempt(self, step: int, drawn: list[tuple[int, Draw]], number: int, missing: int) -> list[RolloutGroup]:
        config = self.config
        prompts = [
            Prompt(
                messages=render(self.harness, draw.task.inputs, draw.task.images),
                seed=derive_seed("attempt", self.seed, position, index),
            )
            for position, draw in drawn
            for index in range(config.group_size)
        ]
        sampling = Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=config.max_tokens,
            seed=derive_seed("rollout", self.seed, step),
        )
        generations = self.engine.generate(prompts, sampling)
        groups = []
        for row, (position, draw) in enumerate(drawn):
            rows = slice(row * config.group_size, (row + 1) * config.group_size)
            group = self._group(draw, position, number, prompts[rows], generations[rows])
            if group.fate == "trained":
                missing -= 1
                if missing < 0:
                    group = group.model_copy(update={"fate": "surplus"})
            groups.append(group)
        return groups

    def _group(
        self, draw: Draw, position: int, number: int, prompts: Sequence[Prompt], generations: Sequence[Generation]
    ) -> RolloutGroup:
        attempts = tuple(
            RolloutAttempt(
                text=generation.text,
                finish_reason=generation.finish_reason,
                token_ids=generation.token_ids,
                seed=prompt.seed,
                verdict=self._verdict(draw.task, generation),
                token_mask=() if all(generation.token_mask) else generation.token_mask,
                log_probabilities=self._kept_log_probabilities(generation),
                policy_id=generation.policy_id,
            )
            for prompt, generation in zip(prompts, generations, strict=True)
        )
        rewards = [attempt.verdict.reward for attempt in attempts if isinstance(attempt.verdict, Scored)]
        prompt_ids = next((generation.prompt_token_ids for generation in generations if not generation.error), ())
        return RolloutGroup(
            task_id=draw.task.task_id,
            position=position,
            draw=number,
            prompt_token_ids=prompt_ids,
            attempts=attempts,
            fate=self._fate(rewards),
            images=draw.task.images,
            importance=draw.importance,
        )

    def _kept_log_probabilities(self, generation: Generation) -> tuple[float, ...]:
        """The engine's own, where the loss needs them; a record of rollouts is smaller without."""
        if self.config.engine_correction_cap is None or generation.error:
            return ()
        found, wanted = len(generation.log_probabilities), len(generation.token_ids)
        if found != wanted:
            raise TrainingError(
                f"engine_correction_cap={self.config.engine_correction_cap} needs the engine's log-probability of "
                f"every token; got {found} for {wanted} tokens; set it to null, or use an engine that gives them"
            )
        return generation.log_probabilities

    def _fate(self, rewards: list[float]) -> GroupFate:
        dynamic = self.config.dynamic_sampling
        if len(rewards) < 2:
            return "unscored"
        return "no_signal" if dynamic.enabled and is_all_equal(rewards, dynamic.tolerance) else "trained"

    def _verdict(self, task: Task, generation: Generation) -> Scored | Unscored:
        fault = self._engine_fault(generation)
        if fault:
            return Unscored(boundary="engine", error=fault)
        verdict = self.score(task, generation)
        for _ in range(SCORE_TRIES - 1):
            if isinstance(verdict, Scored):
                break
            verdict = self.score(task, generation)
        if not isinstance(verdict, Scored):
            return verdict
        if not all(map(math.isfinite, (verdict.reward, *verdict.parts.values()))):
            raise NonFiniteTraining(
                f"the verifier gave task {task.task_id} reward {verdict.reward} and parts {verdict.parts}; expected "
                "finite numbers; correct the suite's verify, or return Unscored where it cannot judge"
            )
        return self._shaped(verdict, sampled_count(generation.token_ids, generation.token_mask))

    def _engine_fault(self, generation: Generation) -> str:
        """Why a generation cannot be trained on, or nothing."""
        if generation.finish_reason == "error":
            return generation.error
        if generation.token_mask and len(generation.token_mask) != len(generation.token_ids):
            return f"token_mask has {len(generation.token_mask)} entries for {len(generation.token_ids)} tokens"
        if generation.policy_id and generation.policy_id != self.engine.policy_id:
            return f"weights {generation.policy_id} answered, expected {self.engine.policy_id}"
        return ""

    def _shaped(self, verdict: Scored, length: int) -> Scored:
        """The final reward: the suite's, and the penalty on length where it is asked for."""
        overlong = self.config.overlong
        if overlong is None:
            return verdict
        if OVERLONG_PART in verdict.parts:
            raise TrainingError(
                f"the suite's reward has a part {OVERLONG_PART!r} already and `overlong` would add another; set "
                "it to null, or take the part out of the suite's verdict"
            )
        penalty = overlong_penalty(
            length, max_tokens=self.config.max_tokens, buffer=overlong.buffer, scale=overlong.scale
        )
        parts = {**verdict.parts, OVERLONG_PART: penalty}
        return verdict.model_copy(update={"parts": parts, "reward": verdict.reward + penalty})

    def _next_draw(self, groups: list[RolloutGroup], missing: int) -> int:
        """Groups to draw next: what is missing over the rate of signal so far, within one decoding batch."""
        found = sum(group.fate in ("trained", "surplus") for group in groups)
        expected = math.ceil(missing / max(found / len(groups), MIN_SIGNAL_RATE)) if groups else missing
        return max(missing, min(expected, self.rows_at_once // self.config.group_size))

    def _check_unscored(self, step: int, groups: list[RolloutGroup]) -> None:
        lost = [attempt.verdict for group in groups for attempt in group.attempts]
        errors = [verdict.error for verdict in lost if isinstance(verdict, Unscored)]
        if lost and len(errors) > self.config.max_unscored_share * len(lost):
            raise TooManyUnscored(
                f"rollout step {step}: {len(errors)} of {len(lost)} attempts have no score, more than "
                f"max_unscored_share={self.config.max_unscored_share}; first error: {errors[0]}; repair it and resume"
            )

    def _stop_reason(self, step: int, groups: list[RolloutGroup], missing: int) -> str:
        equal = sum(group.fate == "no_signal" for group in groups)
        return (
            f"rollout step {step}: {missing} of {self.config.prompts_per_step} groups are missing after {len(groups)} "
            f"sampled groups ({equal} with all rewards equal) from a pool of {len(self.stream)} tasks; add harder or "
            "easier tasks, raise dynamic_sampling.max_groups_factor, or stop training"
        )
