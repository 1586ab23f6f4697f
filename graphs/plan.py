"""What a configuration will do and what its budget buys, before anything runs. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from pydantic import JsonValue

from agents.llm.config import RoleName
from evals.suites.base import Suite
from graphs.config import RunConfig, VaceConfig
from graphs.config_train import BlockPlan
from harness.errors import UserError
from harness.records import Record, Split
from harness.render import render

SPLITS: tuple[Split, ...] = get_args(Split)
CHARACTERS_PER_TOKEN = {"pocket": 3.0, "hf": 3.5}
"""Rough sizes, to turn rendered text into tokens without loading a tokenizer."""
SECONDS_PER_ATTEMPT = {"pocket": 0.01, "hf": 3.0}
"""Measured on one core: the pocket policy in the quickstart, and SmolLM2-135M with 48-token answers."""
SECONDS_PER_UPDATE_SAMPLE = {"pocket": 0.012, "hf": 1.5}
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
    """Calls of language models behind roles; ``rules`` makes none."""
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


class Plan(Record):
    """The parts of a run, in order, and their sum."""

    condition: str
    rounds: int
    """Passes through the loop, over all phases."""
    rl_blocks: int
    rollout_steps: int
    """Of all blocks."""
    proposals: int
    """At most; a round may propose nothing."""
    start: Cost
    """Demonstrations and the first pair's val score."""
    first_round: Cost
    all_rounds: Cost
    report: Cost
    total: Cost
    limits: dict[str, JsonValue]
    """The budget's limits; null is none."""

    @property
    def smallest(self) -> Cost:
        """The least a useful run costs: start, one round and the report."""
        return self.start.plus(self.first_round).plus(self.report)


class _Sizes(Record):
    prompt_tokens: int
    completion_tokens: int


def make_plan(config: RunConfig, suite: Suite) -> Plan:
    """Count the work of a run.

    Raises:
        UserError: the suite has too few tasks for any.
    """
    refuse_too_few_tasks(config, suite)
    strategy, budget = config.strategy, config.budget
    assert isinstance(strategy, VaceConfig)
    counts = _counts(strategy)
    sizes = _sizes(config, suite)
    val = _evaluation(config, sizes, len(suite.tasks(split="val")[: budget.tasks.val]), budget.replicates.val)
    test = _evaluation(config, sizes, len(suite.tasks(split="test")[: budget.tasks.test]), budget.replicates.test)
    block = _block(config, sizes, strategy.block) if counts.blocks else Cost()
    explore = _attempts(config, sizes, train=strategy.explore_tasks) if counts.explorations else Cost()
    proposal = _calls(config, {"diagnoser": 1, "proposer": 1}) if counts.proposals else Cost()
    measured = val.times(2 if strategy.condition in ("vace", "whale") else 1)  # else a side is known before
    opening = explore if counts.explorations else block
    start = val.plus(_calls(config, {"teacher": strategy.seed_demonstrations}))
    all_rounds = block.times(counts.blocks).plus(explore.times(counts.explorations))
    all_rounds = all_rounds.plus(proposal.times(counts.proposals)).plus(measured.times(counts.rounds))
    report = test.times(1 if strategy.condition == "static" else 2).plus(_calls(config, {"selector": 1}))
    return Plan(
        condition=strategy.condition,
        rounds=counts.rounds,
        rl_blocks=counts.blocks,
        rollout_steps=counts.blocks * strategy.rollout_steps,
        proposals=counts.proposals,
        start=start,
        first_round=opening.plus(proposal).plus(measured) if counts.rounds else Cost(),
        all_rounds=all_rounds,
        report=report,
        total=start.plus(all_rounds).plus(report),
        limits=budget.model_dump(include={"max_wall_s", "max_tokens", "max_cost_usd", "max_evaluations"}),
    )


def refuse_too_few_tasks(config: RunConfig, suite: Suite) -> None:
    """Refuse a suite without enough tasks, before the run finds out at its end.

    Raises:
        UserError: a split is empty, or train is smaller than one rollout step of an RL block.
    """
    counts = {split: len(suite.tasks(split=split)[: getattr(config.budget.tasks, split)]) for split in SPLITS}
    needed = dict.fromkeys(SPLITS, 1)
    needed["train"] = max(1, config.strategy.prompts_needed)
    short = [split for split in SPLITS if counts[split] < needed[split]]
    if short:
        raise UserError(
            f"suite {suite.name} has too few tasks",
            got=", ".join(f"{counts[split]} {split}" for split in short),
            expected=", ".join(f"at least {needed[split]} {split}" for split in short)
            + (f" ({config.step_key})" if needed["train"] > 1 and "train" in short else ""),
            do="choose a larger suite, or fewer prompts per step",
        )


class _Counts(Record):
    rounds: int
    blocks: int
    explorations: int
    proposals: int


def _counts(strategy: VaceConfig) -> _Counts:
    """How often each part of the loop runs under a condition (see graphs/vace.py)."""
    t = strategy.rounds
    return {
        "vace": _Counts(rounds=t, blocks=t, explorations=0, proposals=t),
        "whale": _Counts(rounds=t, blocks=t, explorations=0, proposals=t),
        "static": _Counts(rounds=0, blocks=0, explorations=0, proposals=0),
        "rl-only": _Counts(rounds=t, blocks=t, explorations=0, proposals=0),
        "harness-only": _Counts(rounds=t, blocks=0, explorations=t, proposals=t),
        "sia": _Counts(rounds=2 * t, blocks=t, explorations=t, proposals=t),
    }[strategy.condition]


def refuse_too_small(plan: Plan) -> None:
    """Refuse a budget that cannot finish one round.

    Raises:
        UserError: a limit is below the estimate of start, one round and report; names the limit and both numbers.
    """
    needed = {
        "max_wall_s": plan.smallest.seconds,
        "max_tokens": plan.smallest.tokens,
        "max_evaluations": plan.smallest.evaluation_attempts,
    }
    for name, need in needed.items():
        limit = plan.limits[name]
        if isinstance(limit, int | float) and limit < need:
            raise UserError(
                "the budget cannot finish one round",
                got=f"budget.{name}={limit:g}",
                expected=f"at least {need:,.0f} (start, one round and the report)",
                do=f"raise budget.{name}, or ask for fewer tasks, replicates or rollout steps",
            )


def _sizes(config: RunConfig, suite: Suite) -> _Sizes:
    per_token = CHARACTERS_PER_TOKEN[config.policy.type]
    task = suite.tasks(split="train")[0]
    characters = sum(len(message.content) for message in render(suite.seed_harness(), task.inputs))
    return _Sizes(
        prompt_tokens=round(characters / per_token),
        completion_tokens=min(config.strategy.answer_tokens, round(len(str(task.gold)) * 2 / per_token) + 16),
    )


def _attempts(config: RunConfig, sizes: _Sizes, *, train: int = 0, evaluation: int = 0) -> Cost:
    count = train + evaluation
    return Cost(
        train_attempts=train,
        evaluation_attempts=evaluation,
        tokens=count * (sizes.prompt_tokens + sizes.completion_tokens),
        seconds=count * SECONDS_PER_ATTEMPT[config.policy.type],
    )


def _evaluation(config: RunConfig, sizes: _Sizes, tasks: int, replicates: int) -> Cost:
    return _attempts(config, sizes, evaluation=tasks * replicates)


def _block(config: RunConfig, sizes: _Sizes, plan: BlockPlan) -> Cost:
    steps, rl = plan
    samples = steps * rl.prompts_per_step * rl.group_size
    trained_s = samples * SECONDS_PER_UPDATE_SAMPLE[config.policy.type]
    updates = Cost(updates=steps * rl.updates_per_rollout_step, seconds=trained_s)
    return _attempts(config, sizes, train=samples).plus(updates)


def _calls(config: RunConfig, calls: Mapping[RoleName, int]) -> Cost:
    count = sum(number for role, number in calls.items() if not config.roles.of(role).is_rules)
    return Cost(model_calls=count, tokens=count * CALL_TOKENS, seconds=count * SECONDS_PER_MODEL_CALL)
