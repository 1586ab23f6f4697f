"""Evaluate one pair outside a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from evals.request import EvaluationRequest
from evals.runner import evaluate
from evals.suites.registry import build_suite
from graphs.config import RunConfig
from graphs.lab import close_engine, open_engine
from graphs.merged import BASE, base_id, is_base, merged_id
from graphs.seeds import derive_seed
from graphs.view import find_harness_id
from harness.errors import UserError
from harness.records import Record, Sampling, Split
from memory.store import IMAGES, Store

SEED_HARNESS = "seed"
CLI_PURPOSE = "eval"


class PairChoice(Record):
    """Which pair, on which split."""

    split: str
    checkpoint: str = BASE
    """Checkpoint id, or ``base``."""
    harness: str = SEED_HARNESS
    """Harness id or its first letters, or ``seed``."""
    replicates: int = 1


def evaluate_pair(config: RunConfig, choice: PairChoice, *, home: Path) -> dict[str, Any]:
    """Measure the pair on the tasks that the configuration names; traces go to no run.

    Raises:
        UserError: unknown split.
        NotFound: unknown checkpoint or harness.
    """
    known: list[Split] = [name for name in get_args(Split) if name == choice.split]
    if not known:
        raise UserError("cannot evaluate", got=f"split {choice.split!r}", expected=f"one of {list(get_args(Split))}")
    split, suite, strategy = known[0], build_suite(config.suite, image_folder=home / IMAGES), config.strategy
    with Store.open(home) as store:
        harness = suite.seed_harness()
        if choice.harness != SEED_HARNESS:
            harness = store.lineage.harness(find_harness_id(store, choice.harness))
        wanted: int | None = getattr(config.budget.tasks, split)
        request = EvaluationRequest(
            suite=suite,
            harness=harness,
            tasks=suite.tasks(split=split)[:wanted],
            split=split,
            sampling=Sampling(
                temperature=strategy.evaluation.temperature,
                top_p=strategy.evaluation.top_p,
                max_tokens=strategy.answer_tokens,
                seed=derive_seed(config.seed, split),
            ),
            purpose=CLI_PURPOSE,
            replicates=choice.replicates,
        )
        engine = open_engine(config, store, choice.checkpoint)
        try:
            _refuse_another_base(choice.checkpoint, engine.policy_id)
            evaluation = evaluate(request, engine, ledger=store.ledger(CLI_PURPOSE))
        finally:
            close_engine(engine)
    interval = evaluation.interval()
    return {
        "split": split,
        "checkpoint_id": choice.checkpoint,
        "policy_id": evaluation.policy_id,
        "harness_id": harness.harness_id,
        "mean": evaluation.mean,
        "low": interval.low,
        "high": interval.high,
        "tasks": len(evaluation.scores),
        "replicate_count": choice.replicates,
        "parts": dict(evaluation.parts),
        "strata": {name: {key: item.mean for key, item in rows.items()} for name, rows in evaluation.strata.items()},
        "faults": dict(evaluation.faults),
        "truncated": evaluation.truncated,
        "unscored": evaluation.unscored,
    }


def _refuse_another_base(checkpoint_id: str, policy_id: str) -> None:
    if is_base(checkpoint_id) and checkpoint_id not in (BASE, base_id(policy_id), merged_id(policy_id)):
        raise UserError(
            "the configuration's policy starts from other weights",
            got=f"checkpoint {checkpoint_id}",
            expected=f"{BASE} or {base_id(policy_id)}",
            do="give the configuration of that checkpoint's run",
        )
