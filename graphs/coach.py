"""The supervised side of a run: traces by the teacher, tuning on them, merging. Torch is imported when it tunes."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from agents.records import Demonstrations
from evals.suites.base import Suite
from graphs.config import RunConfig
from graphs.config_train import SftStageConfig
from graphs.desk import Desk
from graphs.merged import is_base, keep_base, merged_record
from graphs.seeds import derive_seed
from graphs.work import Produced, as_inputs, by_role
from harness.errors import BoundaryError, UserError
from harness.model import Demonstration, Harness
from harness.records import Task, Trace, content_id
from memory.records import CheckpointRecord
from memory.store import Store
from policy.config import AnyPolicyConfig

if TYPE_CHECKING:
    from policy.sft.block import SftResult

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

    def tune(self, checkpoint_id: str, harness_id: str, traces_key: str, stage: SftStageConfig) -> str:
        """Supervised fine-tuning on a stage's audited traces; returns the new checkpoint's id."""
        from policy.sft.block import SftRequest, sft_records

        started = time.monotonic()
        before = self._store.lineage.checkpoint(checkpoint_id)
        policy = self._lab.policy(checkpoint_id)
        written = Demonstrations.model_validate(self._work.result(traces_key))
        traces = self._traces(written, harness_id)
        tasks = self._scout.tasks(split="train")
        request = SftRequest(
            parent=None if is_base(checkpoint_id) else self._store.lineage.checkpoint_folder(checkpoint_id),
            records=sft_records(traces, tasks, self._store.lineage.harness(harness_id)),
            config=stage.sft,
            seed=derive_seed(self._config.seed, "sft"),
        )

        result, is_reused, deaths = self._lab.tune(policy, request)
        self._keep(before, policy, result)
        told = _told(before, traces, result, deaths)
        key = content_id([result.checkpoint_id], prefix="sft")
        seconds = time.monotonic() - started
        self._work.note("trainer", "tune", key, told, is_reused=is_reused, seconds=seconds)
        return result.checkpoint_id

    def _keep(self, before: CheckpointRecord, policy: AnyPolicyConfig, result: SftResult) -> None:
        self._store.lineage.save_checkpoint(
            CheckpointRecord(
                checkpoint_id=result.checkpoint_id,
                parent_id=before.checkpoint_id,
                base=before.base,
                kind="adapter" if policy.lora else "full",
                rollout_steps=result.progress.rollout_steps,
                updates=result.progress.updates,
                metadata={"policy_id": result.policy_id, "base_id": result.base_id},
            )
        )

    def merge(self, checkpoint_id: str) -> str:
        """A checkpoint's weights as a new base, a plain model folder in this home; returns the base's id."""
        from policy.merge import merge_checkpoint

        started = time.monotonic()
        before = self._store.lineage.checkpoint(checkpoint_id)
        folder = self._store.verify_checkpoint(checkpoint_id)
        merged = merge_checkpoint(self._lab.policy(checkpoint_id), folder, self._store.home)
        record = merged_record(before, merged)
        keep_base(self._store, record)
        wrote: dict[str, JsonValue] = {"checkpoint_id": record.checkpoint_id, "policy_id": merged.policy_id}
        told = Produced(
            result=None,
            saw={"checkpoint_id": checkpoint_id},
            wrote={**wrote, "folder": str(merged.path)},
            said=f"merged into {merged.policy_id}, the base of what follows",
        )
        self._work.note("trainer", "merge", "", told, seconds=time.monotonic() - started)
        return record.checkpoint_id

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


def _told(before: CheckpointRecord, traces: Sequence[Trace], result: SftResult, deaths: Sequence[str]) -> Produced:
    steps: list[JsonValue] = [step.model_dump(mode="json") for step in result.steps]
    losses = f"loss {result.steps[0].loss:.4f} -> {result.steps[-1].loss:.4f}" if result.steps else "none made"
    return Produced(
        result=None,
        saw={"checkpoint_id": before.checkpoint_id, "traces": [trace.trace_id for trace in traces]},
        wrote={
            "checkpoint_id": result.checkpoint_id,
            "policy_id": result.policy_id,
            "sft_steps": steps,
            "trainer_deaths": list(deaths),
        },
        said=f"{len(result.steps)} updates on {len(traces)} traces, {losses}" + "".join(f"; {one}" for one in deaths),
    )
