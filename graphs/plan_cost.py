"""The units a plan counts in, and what one attempt, one block or one model call costs. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agents.llm.config import RoleName
from evals.suites.base import Suite
from graphs.config import RunConfig
from graphs.config_train import BlockPlan, SftStageConfig
from harness.records import Record
from harness.render import render

CHARACTERS_PER_TOKEN = {"pocket": 3.0, "hf": 3.5, "api": 4.0}
"""Rough sizes, to turn rendered text into tokens without loading a tokenizer."""
SECONDS_PER_ATTEMPT = {"pocket": 0.01, "hf": 3.0, "api": 0.5}
"""Measured on one core: the pocket policy in the quickstart, and SmolLM2-135M with 48-token answers; for an API an
assumption: 8 calls of 4 s in flight."""
SECONDS_PER_UPDATE_SAMPLE = {"pocket": 0.012, "hf": 1.5, "api": 0.0}
"""Forward and backward of one trained sample, on the same machine."""
SECONDS_PER_MODEL_CALL = 10.0
CALL_TOKENS = 4000
"""Prompt and completion of one call of a role's model, typical."""


class Cost(Record):
    """Work of one part of a run."""

    train_attempts: int = 0
    """Rollouts and explorer attempts."""
    evaluation_attempts: int = 0
    """Attempts scored on val and test."""
    updates: int = 0
    """Optimizer updates."""
    model_calls: int = 0
    """Calls of language models: behind roles (``rules`` makes none), and every attempt of an API policy."""
    tokens: int = 0
    """Estimated prompt and completion tokens of the policy and the models."""
    seconds: float = 0.0
    """Estimated wall seconds."""

    def times(self, count: int) -> Cost:
        """This work ``count`` times."""
        return Cost(**{name: value * count for name, value in self})

    def plus(self, other: Cost) -> Cost:
        """Both."""
        return Cost(**{name: value + getattr(other, name) for name, value in self})


class Sizes(Record):
    """Typical tokens of one attempt."""

    prompt_tokens: int
    completion_tokens: int


def sizes_of(config: RunConfig, suite: Suite) -> Sizes:
    """Estimate them from the first train task under the seed harness, without a tokenizer."""
    per_token = CHARACTERS_PER_TOKEN[config.policy.type]
    task = suite.tasks(split="train")[0]
    characters = sum(len(message.content) for message in render(suite.seed_harness(), task.inputs))
    return Sizes(
        prompt_tokens=round(characters / per_token),
        completion_tokens=min(config.strategy.answer_tokens, round(len(str(task.gold)) * 2 / per_token) + 16),
    )


def attempts(config: RunConfig, sizes: Sizes, *, train: int = 0, evaluation: int = 0) -> Cost:
    """Attempts at train tasks, and at val and test tasks."""
    count = train + evaluation
    return Cost(
        train_attempts=train,
        evaluation_attempts=evaluation,
        model_calls=count if config.policy.type == "api" else 0,
        tokens=count * (sizes.prompt_tokens + sizes.completion_tokens),
        seconds=count * SECONDS_PER_ATTEMPT[config.policy.type],
    )


def evaluation_cost(config: RunConfig, sizes: Sizes, tasks: int, replicates: int) -> Cost:
    """One evaluation of a pair."""
    return attempts(config, sizes, evaluation=tasks * replicates)


def block_cost(config: RunConfig, sizes: Sizes, plan: BlockPlan) -> Cost:
    """One RL block: its attempts and its updates; groups that dynamic sampling replaces come on top."""
    steps, rl = plan
    samples = steps * rl.prompts_per_step * rl.group_size
    trained_s = samples * SECONDS_PER_UPDATE_SAMPLE[config.policy.type]
    updates = Cost(updates=steps * rl.updates_per_rollout_step, seconds=trained_s)
    return attempts(config, sizes, train=samples).plus(updates)


def sft_cost(config: RunConfig, sizes: Sizes, stage: SftStageConfig, *, tasks: int) -> Cost:
    """One SFT stage: the teacher's answers and the updates, if every answer is accepted.

    Args:
        config: of the run.
        sizes: of one attempt.
        stage: the stage.
        tasks: train tasks that the run may read.
    """
    records = min(stage.traces or tasks, tasks)
    updates = math.ceil(stage.sft.epochs * records / stage.sft.batch_size)
    trained_s = stage.sft.epochs * records * SECONDS_PER_UPDATE_SAMPLE[config.policy.type]
    return calls_cost(config, {"teacher": records}).plus(Cost(updates=updates, seconds=trained_s))


def calls_cost(config: RunConfig, calls: Mapping[RoleName, int]) -> Cost:
    """Calls of language models behind roles."""
    count = sum(number for role, number in calls.items() if not config.roles.of(role).is_rules)
    return Cost(model_calls=count, tokens=count * CALL_TOKENS, seconds=count * SECONDS_PER_MODEL_CALL)
