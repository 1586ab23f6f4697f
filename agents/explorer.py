"""The explorer: executes tasks under a pair; its attempts are the policy's own, never a language model's.

It collects diagnostic traces of train tasks for harness-only rounds and runs the evaluations that
gate, selector and report read. Source: METHODS §1, roles.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.llm.config import RULES
from agents.records import Exploration, RoleRecord
from evals.request import EvaluationRequest
from evals.runner import TraceSink, evaluate
from harness.protocols import RolloutEngine, WorkLedger

EXPLORE = "explore"
"""Purpose of diagnostic traces; they feed proposals, so they come from train alone."""
REPORT = "report"
"""The only purpose that may read test."""


class Explorer:
    """Runs a pair on tasks."""

    def __init__(self, *, ledger: WorkLedger | None = None, sink: TraceSink | None = None) -> None:
        """Choose where work is kept.

        Args:
            ledger: finds finished attempts, so that they are not run again; None runs everything.
            sink: stores every trace of the attempts that are run.
        """
        self._ledger = ledger
        self._sink = sink

    def explore(
        self,
        request: EvaluationRequest,
        engine: RolloutEngine,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Exploration:
        """Execute the request's tasks.

        Args:
            request: harness, tasks, split, sampling, purpose and replicates.
            engine: the policy.
            progress: called with attempts done and attempts in all.

        Returns:
            The evaluation; its ``trace_ids`` name the stored traces.

        Raises:
            ValueError: the purpose may not read the split.
            EmptyMean: no attempt could be scored.
            BoundaryError: the engine failed as a whole.
        """
        _refuse_split(request)
        evaluation = evaluate(request, engine, ledger=self._ledger, sink=self._sink, progress=progress)
        said = (
            f"{evaluation.purpose}: {evaluation.mean:.4f} exact over {len(evaluation.scores)} {evaluation.split} "
            f"tasks, {evaluation.unscored} attempts unscored"
        )
        return Exploration(
            evaluation=evaluation,
            record=RoleRecord(
                role="explorer",
                backend=RULES,
                saw={
                    "policy_id": engine.policy_id,
                    "harness_id": request.harness.harness_id,
                    "split": request.split,
                    "purpose": request.purpose,
                    "tasks": len(request.tasks),
                    "first_task": request.tasks[0].task_id,
                    "last_task": request.tasks[-1].task_id,
                    "replicates": request.replicates,
                    "sampling": request.sampling.model_dump(mode="json"),
                },
                wrote={
                    "evaluation_id": evaluation.evaluation_id,
                    "mean": evaluation.mean,
                    "scored": evaluation.scored,
                    "unscored": evaluation.unscored,
                    "faults": dict(evaluation.faults),
                },
                said=said,
                usage=evaluation.usage,
            ),
        )


def _refuse_split(request: EvaluationRequest) -> None:
    if request.purpose == EXPLORE and request.split != "train":
        raise ValueError(f"exploring failed; got split {request.split!r}; diagnostic traces come from 'train' alone")
    if request.split == "test" and request.purpose != REPORT:
        raise ValueError(f"exploring failed; got purpose {request.purpose!r} on test; only {REPORT!r} may read it")
