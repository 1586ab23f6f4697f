"""The supervised side of a run: traces by the teacher, tuning on them, merging. Torch is imported when it tunes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from agents.records import Demonstrations
from evals.suites.base import Suite
from graphs.config import RunConfig
from graphs.config_train import SftStageConfig
from graphs.desk import Desk
from graphs.work import as_inputs, by_role
from harness.errors import BoundaryError, UserError
from harness.model import Demonstration, Harness
from harness.records import Task, Trace, content_id
from memory.store import Store

TEACH = "teach"
"""Purpose of the teacher's traces."""
Wait = Callable[[Coroutine[Any, Any, Demonstrations]], Demonstrations]
"""Runs a role's work on the event loop that all of a run's model calls share."""


class Coach:
    """Traces, SFT and merging of one run: ids in, ids out."""

    def __init__(self, config: RunConfig, run_id: str, store: Store, suite: Suite, desk: Desk, wait: Wait) -> None:
        self._config = config
        self._run_id = run_id
        self._store = store
        self._suite = suite
        self._teacher = desk.roles.teacher
        self._lab = desk.lab
        self._scout = desk.scout
        self._work = desk.work
        self._wait = wait

    def teach(self, harness_id: str, stage: SftStageConfig) -> str:
        """Audited traces of train tasks; returns the ledger key of the demonstrations behind them.

        The teacher works from the prompt that the policy sees and never from the gold answer; a trace that the
        verifier does not accept, in answer and in form, is not kept.

        Raises:
            UserError: the suite does not know the style.
            BoundaryError: the verifier accepted none.
        """
        harness, tasks = self._store.lineage.harness(harness_id), self._scout.tasks(split="train")
        done = self._work.once(
            "teacher",
            "teach",
            as_inputs(
                harness_id=harness_id,
                suite=self._suite.fingerprint,
                pool=len(tasks),
                wanted=stage.traces,
                style=stage.style,
                model=self._config.roles.teacher,
            ),
            lambda: by_role(self._wait(self._demonstrate(harness, tasks, stage))),
        )
        written = Demonstrations.model_validate(done.result)
        if not written.accepted:
            reasons = [reason for task in written.excluded for reason in task.reasons]
            raise BoundaryError("model_call", f"no trace of {len(written.excluded)} was accepted: {reasons[:3]}")
        self._store.traces.add(self._run_id, self._traces(written, harness_id))
        return done.key

    async def _demonstrate(self, harness: Harness, tasks: Sequence[Task], stage: SftStageConfig) -> Demonstrations:
        try:
            return await self._teacher.demonstrate(harness, tasks, style=stage.style, wanted=stage.traces)
        except ValueError as error:
            raise UserError(
                "the teacher cannot write traces",
                got=f"style {stage.style!r} ({error})",
                do="name a style of the suite",
            ) from error

    def _traces(self, written: Demonstrations, harness_id: str) -> tuple[Trace, ...]:
        tasks = {task.task_id: task for task in self._scout.tasks(split="train")}
        return tuple(
            self._trace(tasks[shown.task_id], shown, harness_id, written.record.backend) for shown in written.accepted
        )

    def _trace(self, task: Task, shown: Demonstration, harness_id: str, backend: str) -> Trace:
        verdict = self._suite.verify(task, shown.completion, finish_reason="stop")
        trace = Trace(
            trace_id="",
            task_id=task.task_id,
            split="train",
            policy_id=f"teacher: {backend}",
            harness_id=harness_id,
            purpose=TEACH,
            completion=shown.completion,
            finish_reason="stop",
            verdict=verdict,
        )
        return trace.model_copy(update={"trace_id": content_id(trace, prefix="trace")})
