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
from policy.footprint import visual_tokens

CHARACTERS_PER_TOKEN = {"pocket": 3.0, "hf": 3.5, "api": 4.0}
"""Rough sizes, to turn rendered text into tokens without loading a tokenizer."""
SECONDS_PER_ATTEMPT = {"pocket": 0.01, "hf": 3.0, "api": 0.5}
"""Measured on one core: the pocket policy in the quickstart, and SmolLM2-135M with 48-token answers; for an API an
assumption: 8 calls of 4 s in flight."""
SECONDS_PER_UPDATE_SAMPLE = {"pocket": 0.012, "hf": 1.5, "api": 0.0}
"""Forward and backward of one trained sample, on the same machine."""
PATCH, MERGE = 16, 2
"""Pixels of a patch's side and patches of a visual token's side, as in the Qwen3.5 models."""
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
    """What the plan says, else estimates from the first train task under the seed harness, without a tokenizer."""
    per_token, plan = CHARACTERS_PER_TOKEN[config.policy.type], config.plan
    task, image = suite.tasks(split="train")[0], getattr(config.policy, "image", None)
    characters = sum(len(message.content) for message in render(suite.seed_harness(), task.inputs))
    seen = visual_tokens(max_pixels=image.max_pixels, patch=PATCH, merge=MERGE) if image else 0
    answer = min(config.strategy.answer_tokens, round(len(str(task.gold)) * 2 / per_token) + 16)
    return Sizes(
        prompt_tokens=plan.prompt_tokens or round(characters / per_token) + seen,
        completion_tokens=plan.completion_tokens or answer,
    )


def gpus_that_train(config: RunConfig) -> int:
    """Processes of the executor, unless the plan says otherwise."""
    executor = None if config.policy.type == "api" else config.policy.executor
    processes = executor.num_processes if executor is not None and executor.type == "accelerate" else 1
    return config.plan.gpus or processes


def gpus_that_sample(config: RunConfig) -> int:
    """Replicas of a vLLM server, else the GPUs that train."""
    if config.policy.type != "api" and config.policy.engine.type == "vllm_server":
        return len(config.policy.engine.urls)
    return gpus_that_train(config)


def is_on_gpu(config: RunConfig) -> bool:
    """Whether the policy runs where this page's measured seconds say nothing."""
    return config.policy.type != "api" and config.policy.device == "cuda"


def seconds_per_attempt(config: RunConfig, sizes: Sizes) -> float:
    """Measured on a CPU; on GPUs from the plan's rate."""
    if is_on_gpu(config):
        return sizes.completion_tokens / (config.plan.rollout_tokens_per_s * gpus_that_sample(config))
    return SECONDS_PER_ATTEMPT[config.policy.type]


def seconds_per_update_sample(config: RunConfig) -> float:
    """Measured on a CPU; on GPUs nothing, since it takes the model's size (:mod:`graphs.plan_memory`)."""
    return 0.0 if is_on_gpu(config) else SECONDS_PER_UPDATE_SAMPLE[config.policy.type]


def attempts(config: RunConfig, sizes: Sizes, *, train: int = 0, evaluation: int = 0) -> Cost:
    """Attempts at train tasks, and at val and test tasks."""
    count = train + evaluation
    return Cost(
        train_attempts=train,
        evaluation_attempts=evaluation,
        model_calls=count if config.policy.type == "api" else 0,
        tokens=count * (sizes.prompt_tokens + sizes.completion_tokens),
        seconds=count * seconds_per_attempt(config, sizes),
    )


def evaluation_cost(config: RunConfig, sizes: Sizes, tasks: int, replicates: int) -> Cost:
    """One evaluation of a pair."""
    return attempts(config, sizes, evaluation=tasks * replicates)


def block_cost(config: RunConfig, sizes: Sizes, plan: BlockPlan) -> Cost:
    """One RL block: its attempts and its updates; groups that dynamic sampling replaces come on top."""
    steps, rl = plan
    samples = steps * rl.prompts_per_step * rl.group_size
    trained_s = samples * seconds_per_update_sample(config)
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
    trained_s = stage.sft.epochs * records * seconds_per_update_sample(config)
    return calls_cost(config, {"teacher": records}).plus(Cost(updates=updates, seconds=trained_s))


def calls_cost(config: RunConfig, calls: Mapping[RoleName, int]) -> Cost:
    """Calls of language models behind roles."""
    count = sum(number for role, number in calls.items() if not config.roles.of(role).is_rules)
    return Cost(model_calls=count, tokens=count * CALL_TOKENS, seconds=count * SECONDS_PER_MODEL_CALL)
