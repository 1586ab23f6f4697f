"""The teacher: writes worked examples of train tasks and keeps only those that the verifier accepts.

The rules backend works with the suite's exact solver, a language model from the prompt that the
policy itself sees. Neither reads the gold answer, and what goes back to a model after a refusal are
the names of the faults, never the verifier's details, which could give the answer away.
Source: METHODS §1, roles (writes and verifies Φ0's demonstrations and any edited ones).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from agents.ask import RoleModel, backend_name, total_usage
from agents.prompt import fill_prompt
from agents.records import Demonstrations, ExcludedTask, Refusal, RoleRecord
from evals.suites.base import Suite
from harness.model import Demonstration, Harness
from harness.records import FinishReason, Message, Record, Scored, Task, Usage, content_id
from harness.render import render


class TeacherConfig(Record):
    """How often a demonstration is tried."""

    max_tries: int = Field(default=3, ge=1)
    """Answers per task; the rules backend is deterministic and tries once."""


class _Attempted(Record):
    """All tries at one task."""

    demonstration: Demonstration | None
    reasons: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    usage: Usage


class Teacher:
    """Writes and verifies demonstrations."""

    def __init__(self, suite: Suite, *, model: RoleModel | None = None, config: TeacherConfig | None = None) -> None:
        """Choose the suite and the backend.

        Args:
            suite: solves (rules backend) and verifies.
            model: writes the examples; None is the ``rules`` backend.
            config: number of tries.
        """
        self._suite = suite
        self._model = model
        self._config = config or TeacherConfig()

    async def demonstrate(
        self, harness: Harness, tasks: Sequence[Task], *, style: str, wanted: int | None = None
    ) -> Demonstrations:
        """Write verified demonstrations, in the order of ``tasks``.

        Args:
            harness: the version they shall serve; its rendered prompt is what a model works from.
            tasks: train tasks; later ones stand in for those that give no demonstration.
            style: how the working shall look; a style of :meth:`Suite.solve` for the rules backend.
            wanted: stop after this many; None tries every task.

        Returns:
            Accepted demonstrations, and each task that never passed with one reason per try.

        Raises:
            ValueError: a task is not from train, or the suite does not know the style.
        """
        accepted: list[Demonstration] = []
        excluded: list[ExcludedTask] = []
        tried: list[_Attempted] = []
        for task in tasks:
            if wanted is not None and len(accepted) >= wanted:
                break
            attempted = await self._attempt(harness, task, style)
            tried.append(attempted)
            if attempted.demonstration is not None:
                accepted.append(attempted.demonstration)
            else:
                reasons = attempted.reasons
                excluded.append(ExcludedTask(task_id=task.task_id, tries=len(reasons), reasons=reasons))
        return Demonstrations(
            accepted=tuple(accepted),
            excluded=tuple(excluded),
            style=style,
            record=RoleRecord(
                role="teacher",
                backend=backend_name(self._model),
                saw={
                    "harness_id": harness.harness_id,
                    "style": style,
                    "task_ids": [task.task_id for task in tasks[: len(tried)]],
                },
                wrote={
                    "accepted": {shown.task_id: shown.completion for shown in accepted},
                    "excluded": {task.task_id: list(task.reasons) for task in excluded},
                },
                said=f"{len(accepted)} verified demonstrations in style {style!r}, {len(excluded)} tasks excluded",
                refusals=tuple(refusal for one in tried for refusal in one.refusals),
                usage=total_usage(one.usage for one in tried),
            ),
        )

    async def _attempt(self, harness: Harness, task: Task, style: str) -> _Attempted:
        if task.split != "train":
            raise ValueError(
                f"demonstrating failed; got task {task.task_id} of split {task.split!r}; expected a train task: "
                "val and test are never shown to a policy"
            )
        if self._model is None:
            completion = self._suite.solve(task, style=style)
            fault = self._fault(task, completion, "stop", token_count=0)
            shown = None if fault else _demonstration(task, completion)
            return _Attempted(demonstration=shown, reasons=(fault,) if fault else (), refusals=(), usage=Usage())
        return await self._ask(self._model, harness, task, style)

    async def _ask(self, model: RoleModel, harness: Harness, task: Task, style: str) -> _Attempted:
        """Let a model work from the policy's own prompt until the verifier accepts."""
        messages = list(_prompt(harness, task, style))
        refusals: list[Refusal] = []
        usages: list[Usage] = []
        shown: Demonstration | None = None
        while shown is None and len(refusals) < self._config.max_tries:
            reply = await model.complete(messages, purpose=f"demonstrate:{task.task_id}", replicate=len(refusals))
            usages.append(reply.usage)
            completion = reply.text.strip()
            fault = self._fault(task, completion, reply.finish_reason, token_count=reply.usage.completion_tokens)
            if not fault:
                shown = _demonstration(task, completion)
                break
            refusals.append(Refusal(answer=completion, errors=(fault,)))
            messages += [
                Message(role="assistant", content=completion or "(empty)"),
                Message(role="user", content=f"Not accepted: {fault}. Work it out again and answer in the same form."),
            ]
        reasons = tuple(refusal.errors[0] for refusal in refusals)
        return _Attempted(demonstration=shown, reasons=reasons, refusals=tuple(refusals), usage=total_usage(usages))

    def _fault(self, task: Task, completion: str, finish_reason: FinishReason, *, token_count: int) -> str:
        """Why the verifier does not accept a completion, by fault names alone; empty when it does."""
        try:
            verdict = self._suite.verify(task, completion, finish_reason=finish_reason, token_count=token_count)
        except Exception as error:  # the boundary to user code: a failure is no acceptance
            return f"the verifier raised {type(error).__name__}: {error}"
        if not isinstance(verdict, Scored):
            return f"the verifier gave no score: {verdict.error}"
        if _is_accepted(verdict):
            return ""
        names = [found.fault for found in verdict.diagnoses if found.fault != "none"]
        return f"the verifier names {', '.join(names) or 'a wrong answer'}"


def _is_accepted(verdict: Scored) -> bool:
    """Exact, and in the right form where the suite scores form."""
    return verdict.parts.get("exact") == 1.0 and verdict.parts.get("format", 1.0) == 1.0


def _demonstration(task: Task, completion: str) -> Demonstration:
    """The demonstration of a task keeps its id in every style, so that a diff shows a rewrite."""
    shown_id = content_id({"task_id": task.task_id}, prefix="demonstration", length=8)
    return Demonstration(demonstration_id=shown_id, task_id=task.task_id, inputs=task.inputs, completion=completion)


def _prompt(harness: Harness, task: Task, style: str) -> tuple[Message, ...]:
    student = "\n\n".join(f"[{message.role}]\n{message.content}" for message in render(harness, task.inputs))
    return fill_prompt("teacher", prompt=student, style=style)
