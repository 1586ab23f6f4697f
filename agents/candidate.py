"""From edits to an audited candidate: apply them, rewrite demonstrations where asked, check the result."""

from __future__ import annotations

from collections.abc import Sequence

from agents.teacher import Teacher
from evals.suites.base import Suite
from harness.audit import AuditRules, audit_candidate
from harness.edit import EditRejected, HarnessEdit, ReplaceDemonstration, apply_edits
from harness.model import Demonstration, Harness
from harness.records import Record, Usage


class BuiltCandidate(Record):
    """A candidate; it may be proposed when ``errors`` is empty."""

    candidate: Harness | None = None
    edits: tuple[HarnessEdit, ...] = ()
    """All edits, the teacher's replacements included."""
    errors: tuple[str, ...] = ()
    """Exact faults, one sentence each."""
    usage: Usage = Usage()
    """What the teacher spent on it, paid whether or not the candidate stands."""


class CandidateBuilder:
    """Builds candidates of one suite under one set of audit rules."""

    def __init__(self, suite: Suite, teacher: Teacher, rules: AuditRules) -> None:
        self._suite = suite
        self._teacher = teacher
        self.rules = rules

    async def build(self, source: Harness, edits: Sequence[HarnessEdit], *, demonstration_style: str) -> BuiltCandidate:
        """Make and audit one candidate.

        Args:
            source: the incumbent.
            edits: edits of its texts.
            demonstration_style: when set, the teacher rewrites the demonstrations that are left in this style.
        """
        try:
            edited = apply_edits(source, edits)
        except EditRejected as refusal:
            return BuiltCandidate(errors=(str(refusal),))
        rewrites, errors, usage = await self._rewrites(edited, demonstration_style)
        if errors:
            return BuiltCandidate(errors=errors, usage=usage)
        candidate = apply_edits(edited, rewrites)
        findings = audit_candidate(source, candidate, self.rules)
        return BuiltCandidate(
            candidate=candidate,
            edits=(*edits, *rewrites),
            errors=tuple(f"{finding.code} at {finding.where}: {finding.message}" for finding in findings),
            usage=usage,
        )

    async def _rewrites(self, edited: Harness, style: str) -> tuple[list[ReplaceDemonstration], tuple[str, ...], Usage]:
        """One verified replacement per demonstration, or why there is none."""
        shown = edited.demonstrations
        if not style or not shown:
            return [], (), Usage()
        by_id = {task.task_id: task for task in self._suite.tasks(split="train")}
        if strangers := sorted({one.task_id for one in shown} - set(by_id)):
            return (
                [],
                (f"demonstrations show {strangers}, which are no train tasks; they cannot be rewritten",),
                Usage(),
            )
        try:
            written = await self._teacher.demonstrate(edited, [by_id[one.task_id] for one in shown], style=style)
        except ValueError as error:
            return [], (f"demonstrations cannot be rewritten in style {style!r}: {error}",), Usage()
        usage = written.record.usage
        if written.excluded:
            reasons = {task.task_id: task.reasons[-1] for task in written.excluded}
            return [], (f"no verified demonstration in style {style!r} for {reasons}",), usage
        pairs = zip(shown, written.accepted, strict=True)
        return [_replacement(before, after) for before, after in pairs], (), usage


def _replacement(before: Demonstration, after: Demonstration) -> ReplaceDemonstration:
    """Put the new working in the place of the old one; id, task and inputs stay."""
    rewritten = before.model_copy(update={"completion": after.completion})
    return ReplaceDemonstration(demonstration_id=before.demonstration_id, demonstration=rewritten)
