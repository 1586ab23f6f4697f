"""Run a pair on tasks and score it; what the ledger has is never run again.

An attempt's seed depends on the evaluation's seed, the task and the replicate, never on the harness or the
weights, so two versions measured alike use common random numbers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from evals.evaluation import (
    GATE_PART,
    AttemptOutcome,
    EmptyMean,
    Evaluation,
    PairedScores,
    add_usage,
    pair_evaluations,
    summarise,
)
from evals.request import EvaluationRequest, attempt_seed, engine_identity, evaluation_key, shared_inputs
from harness.errors import BoundaryError, UserError
from harness.protocols import Prompt, RolloutEngine, WorkLedger
from harness.records import Generation, Sampling, Scored, Task, Trace, Unscored, content_id
from harness.render import render

__all__ = [
    "EmptyMean",
    "Evaluation",
    "EvaluationRequest",
    "PairedScores",
    "attempt_seed",
    "evaluate",
    "evaluate_async",
    "evaluation_key",
    "pair_evaluations",
]

TraceSink = Callable[[Sequence[Trace]], object]
"""Stores traces; called once per batch, before the batch counts as done; must accept a trace twice."""


@dataclass(frozen=True)
class _Attempt:
    task: Task
    replicate: int
    seed: int


def evaluate(
    request: EvaluationRequest,
    engine: RolloutEngine,
    *,
    ledger: WorkLedger | None = None,
    sink: TraceSink | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Measure a pair.

    Args:
        request: what to measure.
        engine: the policy.
        ledger: finds finished evaluations and batches; None runs everything.
        sink: takes the traces of every batch that is run now.
        progress: called with attempts done and attempts in all.

    Raises:
        EmptyMean: no attempt could be scored.
        BoundaryError: the engine raised, or broke its contract.
    """
    key = evaluation_key(request, engine)
    if ledger is not None and (found := ledger.find(key)) is not None:
        return Evaluation.model_validate(found)
    total = len(request.tasks) * request.replicates
    outcomes: list[AttemptOutcome] = []
    for batch in _batches(request):

        def report(answered: int, before: int = len(outcomes)) -> None:
            if progress is not None:
                progress(before + answered, total)

        outcomes += _run_batch(request, engine, batch, ledger, sink, report)
        report(0, len(outcomes))
    evaluation = Evaluation.model_validate(
        {
            "evaluation_id": key,
            "suite": request.suite.name,
            "suite_fingerprint": request.suite.fingerprint,
            "split": request.split,
            "purpose": request.purpose,
            "policy_id": engine.policy_id,
            "engine": engine_identity(engine),
            "harness_id": request.harness.harness_id,
            "sampling": request.sampling,
            "replicates": request.replicates,
            **summarise(request.tasks, outcomes),
        }
    )
    if ledger is None or evaluation.unscored_share > request.max_unscored_share:
        return evaluation
    kept = ledger.record(key, kind="evaluation", result=evaluation.model_dump(mode="json"))
    return Evaluation.model_validate(kept)


async def evaluate_async(
    request: EvaluationRequest,
    engine: RolloutEngine,
    *,
    ledger: WorkLedger | None = None,
    sink: TraceSink | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """:func:`evaluate` beside a running event loop; engines are blocking."""
    return await asyncio.to_thread(evaluate, request, engine, ledger=ledger, sink=sink, progress=progress)


def _batches(request: EvaluationRequest) -> Iterator[list[_Attempt]]:
    """All attempts, replicate by replicate, in batches of fixed composition."""
    attempts = [
        _Attempt(task, replicate, attempt_seed(request.sampling.seed, task.task_id, replicate))
        for replicate in range(request.replicates)
        for task in request.tasks
    ]
    for start in range(0, len(attempts), request.batch_size):
        yield attempts[start : start + request.batch_size]


def _run_batch(
    request: EvaluationRequest,
    engine: RolloutEngine,
    batch: Sequence[_Attempt],
    ledger: WorkLedger | None,
    sink: TraceSink | None,
    report: Callable[[int], None],
) -> list[AttemptOutcome]:
    names: list[JsonValue] = [[attempt.task.task_id, attempt.replicate] for attempt in batch]
    key = content_id(shared_inputs(request, engine) | {"attempts": names}, prefix="batch")
    found = None if ledger is None else ledger.find(key)
    if isinstance(found, list):
        return [AttemptOutcome.model_validate(item) for item in found]
    tries = _generate(request, engine, batch, report)
    traces = [_trace(request, engine, attempt, generations) for attempt, generations in zip(batch, tries, strict=True)]
    outcomes = [_outcome(trace, len(made) - 1) for trace, made in zip(traces, tries, strict=True)]
    if sink is not None:
        sink(traces)
    if ledger is not None and all(outcome.score is not None for outcome in outcomes):
        # A batch with failures is left open: a later sitting tries it again.
        ledger.record(key, kind="evaluation_batch", result=[outcome.model_dump(mode="json") for outcome in outcomes])
    return outcomes


def _generate(
    request: EvaluationRequest,
    engine: RolloutEngine,
    batch: Sequence[_Attempt],
    report: Callable[[int], None],
) -> list[list[Generation]]:
    """All tries of every attempt of a batch, in order; only failed attempts are tried again."""
    prompts = [
        Prompt(messages=render(request.harness, attempt.task.inputs, attempt.task.images), seed=attempt.seed)
        for attempt in batch
    ]
    tries: list[list[Generation]] = [[] for _ in batch]
    waiting = list(range(len(batch)))
    for number in range(1 + request.max_retries):
        if not waiting:
            break
        made = _call(engine, [prompts[index] for index in waiting], request.sampling, None if number else report)
        for index, generation in zip(waiting, made, strict=True):
            tries[index].append(generation)
        waiting = [index for index in waiting if _has_failed(tries[index][-1])]
    return tries


def _call(
    engine: RolloutEngine, prompts: Sequence[Prompt], sampling: Sampling, report: Callable[[int], None] | None
) -> list[Generation]:
    try:
        made = engine.generate(prompts, sampling, progress=report)
    except (BoundaryError, UserError):
        raise
    except Exception as error:
        raise BoundaryError("engine", f"{engine_identity(engine)} raised {type(error).__name__}: {error}") from error
    if len(made) != len(prompts):
        raise BoundaryError("engine", f"{engine_identity(engine)} gave {len(made)} answers to {len(prompts)} prompts")
    return made


def _has_failed(generation: Generation) -> bool:
    return generation.finish_reason == "error" or bool(generation.error)


def _trace(request: EvaluationRequest, engine: RolloutEngine, attempt: _Attempt, tries: Sequence[Generation]) -> Trace:
    last = tries[-1]
    token_count = len(last.token_ids) or last.usage.completion_tokens
    trace = Trace(
        trace_id="",
        task_id=attempt.task.task_id,
        split=request.split,
        policy_id=engine.policy_id,
        harness_id=request.harness.harness_id,
        purpose=request.purpose,
        replicate=attempt.replicate,
        completion=last.text,
        finish_reason=last.finish_reason,
        verdict=_verdict(request, attempt.task, last, token_count),
        usage=add_usage(generation.usage for generation in tries),
        token_count=token_count,
        seed=attempt.seed,
    )
    return trace.model_copy(update={"trace_id": content_id(trace, prefix="trace")})


def _verdict(request: EvaluationRequest, task: Task, generation: Generation, token_count: int) -> Scored | Unscored:
    if _has_failed(generation):
        return Unscored(boundary="engine", error=generation.error or "the engine gave no reason")
    try:
        scored = request.suite.verify(
            task, generation.text, finish_reason=generation.finish_reason, token_count=token_count
        )
        if GATE_PART not in scored.parts:
            raise KeyError(f"verdict parts {sorted(scored.parts)} lack {GATE_PART!r}")
        if not 0 <= scored.parts[GATE_PART] <= 1 or not all(
            map(math.isfinite, (scored.reward, *scored.parts.values()))
        ):
            raise ValueError(f"reward {scored.reward}, parts {scored.parts}; expected finite, {GATE_PART} from 0 to 1")
    except Exception as error:  # a suite is user code; its failure is no score
        return Unscored(boundary="user_code", error=f"verify raised {type(error).__name__}: {error}")
    return scored


def _outcome(trace: Trace, retries: int) -> AttemptOutcome:
    verdict = trace.verdict
    common = {
        "task_id": trace.task_id,
        "replicate": trace.replicate,
        "trace_id": trace.trace_id,
        "finish_reason": trace.finish_reason,
        "usage": trace.usage,
        "retries": retries,
    }
    if isinstance(verdict, Unscored):
        return AttemptOutcome.model_validate(
            common | {"score": None, "boundary": verdict.boundary, "error": verdict.error}
        )
    faults = tuple(dict.fromkeys(diagnosis.fault for diagnosis in verdict.diagnoses if diagnosis.fault != "none"))
    return AttemptOutcome.model_validate(
        common | {"score": verdict.parts[GATE_PART], "reward": verdict.reward, "parts": verdict.parts, "faults": faults}
    )
