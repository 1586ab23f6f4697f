"""The diagnoser: failed and successful train traces in, recurring errors with counts and evidence out.

Counts and shares always come from the verifier's diagnoses. A language model adds what the verifier
cannot know: why the harness lets an error happen, and what in it should change. It never adds a count.
Source: METHODS §1, step 2; §2, Harness II (4) for the rule that a finding cites two traces.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pydantic import Field, JsonValue

from agents.ask import RoleModel, ask_checked, backend_name
from agents.prompt import fill_prompt
from agents.records import Evidence, Findings, RecurringError, Refusal, RoleRecord
from harness.model import Harness
from harness.records import Diagnosis, Record, Scored, Task, Trace, Usage
from harness.render import render_system

NO_FAULT = "none"
UNNAMED_FAULT = "unnamed"
"""Stands for a failed attempt whose verdict names no fault."""


class DiagnoserConfig(Record):
    """How much evidence a diagnosis keeps and shows."""

    min_count: int = Field(default=2, ge=1)
    """Failed attempts that make a fault recurring; rarer ones are one-offs."""
    evidence_per_error: int = Field(default=3, ge=1)
    """Quoted traces per recurring error."""
    quote_chars: int = Field(default=600, ge=20)
    """Longest quote; longer attempts keep their end, where the answer stands."""
    contrast_per_error: int = Field(default=2, ge=0)
    """Successful traces at the same tasks named per error."""
    max_tries: int = Field(default=3, ge=1)
    """Answers of a language model before the diagnosis stays without its explanations."""


class Explanation(Record):
    """A model's account of one recurring error."""

    fault: str
    explanation: str = Field(min_length=1)
    advice: str = Field(min_length=1)
    trace_ids: tuple[str, ...]
    """At least two of the quoted traces of this error, or the only one."""


class Explanations(Record):
    """A model's account of all recurring errors it can explain."""

    errors: tuple[Explanation, ...]


class Diagnoser:
    """Turns contrasted traces into findings."""

    def __init__(self, *, model: RoleModel | None = None, config: DiagnoserConfig | None = None) -> None:
        """Choose the backend.

        Args:
            model: explains the errors; None is the ``rules`` backend.
            config: evidence limits.
        """
        self._model = model
        self._config = config or DiagnoserConfig()

    async def diagnose(self, traces: Sequence[Trace], tasks: Sequence[Task], *, harness: Harness) -> Findings:
        """Find the errors that recur in ``traces``.

        Args:
            traces: attempts at train tasks; unscored ones are counted and left out.
            tasks: the tasks behind them; their reference guides the explanation.
            harness: the version under which most of them ran, shown to the model.

        Raises:
            ValueError: there is no trace, a trace is not from train, or its task is not given.
        """
        by_id = _checked(traces, tasks)
        scored = [(trace, trace.verdict) for trace in traces if isinstance(trace.verdict, Scored)]
        failed = [(trace, verdict) for trace, verdict in scored if verdict.parts["exact"] < 1.0]
        solved = [trace for trace, verdict in scored if verdict.parts["exact"] >= 1.0]
        errors, one_offs = self._tally(failed, solved)
        usage, refusals = Usage(), tuple[Refusal, ...]()
        if self._model is not None and errors:
            errors, usage, refusals = await self._explain(self._model, errors, by_id, harness)
        counts: dict[str, JsonValue] = {"traces": len(traces), "scored": len(scored), "failed": len(failed)}
        return Findings(
            traces=len(traces),
            scored=len(scored),
            unscored=len(traces) - len(scored),
            failed=len(failed),
            errors=tuple(errors),
            one_offs=one_offs,
            record=RoleRecord(
                role="diagnoser",
                backend=backend_name(self._model),
                saw={**counts, "harness_id": harness.harness_id, "tasks": len({trace.task_id for trace in traces})},
                wrote={error.fault: {"count": error.count, "share": round(error.share, 4)} for error in errors},
                said=_sentence(len(scored), len(failed), errors),
                refusals=refusals,
                usage=usage,
            ),
        )

    def _tally(
        self, failed: Sequence[tuple[Trace, Scored]], solved: Sequence[Trace]
    ) -> tuple[list[RecurringError], dict[str, int]]:
        """Count every fault; split each failed attempt's blame evenly over its faults."""
        shown: dict[str, list[tuple[Trace, Diagnosis]]] = defaultdict(list)
        blame: Counter[str] = Counter()
        weights: dict[str, float] = defaultdict(float)
        for trace, verdict in failed:
            faults = {found.fault: found for found in reversed(verdict.diagnoses) if found.fault != NO_FAULT}
            faults = faults or {UNNAMED_FAULT: Diagnosis(fault=UNNAMED_FAULT)}
            for fault, found in faults.items():
                shown[fault].append((trace, found))
                blame[fault] += 1
                weights[fault] += 1 / len(faults) / len(failed)
        ordered = sorted(blame, key=lambda fault: (-blame[fault], fault))
        errors = [
            RecurringError(
                fault=fault,
                count=blame[fault],
                share=blame[fault] / len(failed),
                weight=weights[fault],
                evidence=tuple(self._quote(trace, found) for trace, found in self._spread(shown[fault])),
                contrast_trace_ids=self._contrast([trace for trace, _ in shown[fault]], solved),
            )
            for fault in ordered
            if blame[fault] >= self._config.min_count
        ]
        return errors, {fault: blame[fault] for fault in ordered if blame[fault] < self._config.min_count}

    def _spread(self, shown: Sequence[tuple[Trace, Diagnosis]]) -> list[tuple[Trace, Diagnosis]]:
        """The first trace of each task before a second one of any, so that evidence spans tasks."""
        first: dict[str, tuple[Trace, Diagnosis]] = {}
        rest: list[tuple[Trace, Diagnosis]] = []
        for item in shown:
            if first.setdefault(item[0].task_id, item) is not item:
                rest.append(item)
        return [*first.values(), *rest][: self._config.evidence_per_error]

    def _quote(self, trace: Trace, found: Diagnosis) -> Evidence:
        text = trace.completion
        limit = self._config.quote_chars
        quote = text if len(text) <= limit else f"…{text[-limit:]}"
        return Evidence(trace_id=trace.trace_id, task_id=trace.task_id, quote=quote, detail=found.detail)

    def _contrast(self, shown: Sequence[Trace], solved: Sequence[Trace]) -> tuple[str, ...]:
        task_ids = {trace.task_id for trace in shown}
        found = [trace.trace_id for trace in solved if trace.task_id in task_ids]
        return tuple(found[: self._config.contrast_per_error])

    async def _explain(
        self, model: RoleModel, errors: list[RecurringError], tasks: Mapping[str, Task], harness: Harness
    ) -> tuple[list[RecurringError], Usage, tuple[Refusal, ...]]:
        """Have a model explain the tallied errors; without a valid answer they stay as they are."""
        messages = fill_prompt("diagnoser", harness=render_system(harness), errors=_errors_text(errors, tasks))
        known = {error.fault: error for error in errors}

        async def check(said: Explanations) -> list[str]:
            return _faults_of(said, known)

        answer = await ask_checked(
            model,
            messages,
            Explanations,
            purpose="diagnose",
            check=check,
            max_tries=self._config.max_tries,
        )
        said = {item.fault: item for item in answer.value.errors} if answer.value else {}
        explained = [
            error.model_copy(update={"explanation": said[error.fault].explanation, "advice": said[error.fault].advice})
            if error.fault in said
            else error
            for error in errors
        ]
        return explained, answer.usage, answer.refusals


def _checked(traces: Sequence[Trace], tasks: Sequence[Task]) -> dict[str, Task]:
    by_id = {task.task_id: task for task in tasks}
    if not traces:
        raise ValueError("diagnosing failed; got no traces; expected those of an RL block or of the explorer")
    for trace in traces:
        if trace.split != "train":
            raise ValueError(
                f"diagnosing failed; got trace {trace.trace_id} of split {trace.split!r}; expected train only: "
                "val and test never feed a proposal"
            )
        if trace.task_id not in by_id:
            raise ValueError(
                f"diagnosing failed; got trace {trace.trace_id} of task {trace.task_id}, which is not given"
            )
    return by_id


def _faults_of(said: Explanations, known: Mapping[str, RecurringError]) -> list[str]:
    """What is wrong with a model's account."""
    problems: list[str] = []
    for item in said.errors:
        if item.fault not in known:
            problems.append(f"fault {item.fault!r} is not among {sorted(known)}; explain only these")
            continue
        quoted = {evidence.trace_id for evidence in known[item.fault].evidence}
        cited = set(item.trace_ids)
        if cited - quoted:
            problems.append(
                f"{item.fault}: trace ids {sorted(cited - quoted)} were not quoted for it; cite {sorted(quoted)}"
            )
        elif len(cited) < min(2, len(quoted)):
            problems.append(f"{item.fault}: got {len(cited)} cited traces, expected {min(2, len(quoted))} or more")
    explained = [item.fault for item in said.errors]
    problems += [f"fault {fault!r} is explained twice" for fault, times in Counter(explained).items() if times > 1]
    if not said.errors:
        problems.append(f"no error is explained; explain at least one of {sorted(known)}")
    return problems


def _errors_text(errors: Sequence[RecurringError], tasks: Mapping[str, Task]) -> str:
    """The tallied errors with quotes and references, for the prompt."""
    blocks: list[str] = []
    for error in errors:
        lines = [f"## {error.fault}: {error.count} attempts, {error.share:.0%} of the failed ones"]
        for evidence in error.evidence:
            task = tasks[evidence.task_id]
            lines.append(f"### trace {evidence.trace_id}")
            lines += [f"{name}: {text}" for name, text in task.inputs.items()]
            lines.append(f"attempt: {evidence.quote}")
            if task.gold is not None:
                lines.append(f"reference: {json.dumps(task.gold, ensure_ascii=False)}")
            lines.append(f"verifier: {json.dumps(evidence.detail, ensure_ascii=False)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _sentence(scored: int, failed: int, errors: Sequence[RecurringError]) -> str:
    if not failed:
        return f"all {scored} scored attempts are exact"
    top = ", ".join(f"{error.fault} {error.share:.0%}" for error in errors[:3]) or "no fault recurs"
    return f"{failed} of {scored} scored attempts failed: {top}"
