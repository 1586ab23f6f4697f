"""What a configuration will do and what its budget buys, before anything runs. Torch-free."""

from __future__ import annotations

from functools import reduce
from typing import get_args

from pydantic import JsonValue

from evals.suites.base import Suite
from graphs.config import RunConfig, VaceConfig
from graphs.config_train import SftStageConfig, TrainConfig
from graphs.plan_cost import Cost, Sizes, attempts, block_cost, calls_cost, evaluation_cost, sft_cost, sizes_of
from harness.errors import UserError
from harness.records import Record, Split

SPLITS: tuple[Split, ...] = get_args(Split)


class Plan(Record):
    """The parts of a run, in order, and their sum."""

    condition: str
    rounds: int
    """Passes through the loop over all phases; with ``train``, SFT stages and RL blocks."""
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


def make_plan(config: RunConfig, suite: Suite) -> Plan:
    """Count the work of a run.

    Raises:
        UserError: the suite has too few tasks for any.
    """
    refuse_too_few_tasks(config, suite)
    if isinstance(config.strategy, TrainConfig):
        return _plan_train(config, config.strategy, suite)
    return _plan_vace(config, config.strategy, suite)


def _plan_vace(config: RunConfig, strategy: VaceConfig, suite: Suite) -> Plan:
    counts, sizes = _counts(strategy), sizes_of(config, suite)
    val, test = _evaluations(config, sizes, suite)
    block = block_cost(config, sizes, strategy.block) if counts.blocks else Cost()
    explore = attempts(config, sizes, train=strategy.explore_tasks) if counts.explorations else Cost()
    proposal = calls_cost(config, {"diagnoser": 1, "proposer": 1}) if counts.proposals else Cost()
    measured = val.times(2 if strategy.condition in ("vace", "whale") else 1)  # else a side is known before
    opening = explore if counts.explorations else block
    start = val.plus(calls_cost(config, {"teacher": strategy.seed_demonstrations}))
    all_rounds = block.times(counts.blocks).plus(explore.times(counts.explorations))
    all_rounds = all_rounds.plus(proposal.times(counts.proposals)).plus(measured.times(counts.rounds))
    report = test.times(1 if strategy.condition == "static" else 2).plus(calls_cost(config, {"selector": 1}))
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
        limits=_limits(config),
    )


def _plan_train(config: RunConfig, strategy: TrainConfig, suite: Suite) -> Plan:
    sizes, tasks = sizes_of(config, suite), len(suite.tasks(split="train")[: config.budget.tasks.train])
    val, test = _evaluations(config, sizes, suite)
    start = val.plus(calls_cost(config, {"teacher": strategy.seed_demonstrations}))
    units: list[Cost] = []
    for stage in strategy.stages:
        if isinstance(stage, SftStageConfig):
            units.append(sft_cost(config, sizes, stage, tasks=tasks).plus(val))
        else:
            plans = [stage.plan(block) for block in range(len(stage.blocks))]
            units += [block_cost(config, sizes, plan).plus(val) for plan in plans]
    all_units = reduce(Cost.plus, units)
    report = test.times(2).plus(calls_cost(config, {"selector": 1}))
    return Plan(
        condition=strategy.condition,
        rounds=len(units),
        rl_blocks=sum(len(stage.blocks) for stage in strategy.rl_stages),
        rollout_steps=strategy.rollout_steps,
        proposals=0,
        start=start,
        first_round=units[0],
        all_rounds=all_units,
        report=report,
        total=start.plus(all_units).plus(report),
        limits=_limits(config),
    )


def _evaluations(config: RunConfig, sizes: Sizes, suite: Suite) -> tuple[Cost, Cost]:
    """One evaluation of a pair on val, and the replicates of one on test."""
    tasks, replicates = config.budget.tasks, config.budget.replicates
    return (
        evaluation_cost(config, sizes, len(suite.tasks(split="val")[: tasks.val]), replicates.val),
        evaluation_cost(config, sizes, len(suite.tasks(split="test")[: tasks.test]), replicates.test),
    )


def _limits(config: RunConfig) -> dict[str, JsonValue]:
    return config.budget.model_dump(include={"max_wall_s", "max_tokens", "max_cost_usd", "max_evaluations"})


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
