"""What a language model is asked for when it proposes, and what it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from agents.prompt import fill_prompt
from agents.records import Findings, PastProposal
from harness.audit import SizeBudget
from harness.edit import (
    AddSkill,
    AppendExecution,
    DeleteSkill,
    RemoveDemonstration,
    ReplaceText,
    RewriteSkill,
    SetExecution,
    SetHowToUse,
    SetSelection,
)
from harness.model import Harness
from harness.records import Message, Record

WrittenEdit = Annotated[
    AddSkill
    | RewriteSkill
    | DeleteSkill
    | SetHowToUse
    | SetSelection
    | SetExecution
    | AppendExecution
    | ReplaceText
    | RemoveDemonstration,
    Field(discriminator="op"),
]
"""Edits that a model may write itself; demonstrations are written and verified by the teacher."""


class ProposalDraft(Record):
    """A model's proposal; no edits and no style propose nothing."""

    rationale: str = Field(min_length=1)
    """Which error the edits mean to cure, and how."""
    targets: tuple[str, ...] = ()
    """Fault names from the findings."""
    edits: tuple[WrittenEdit, ...] = ()
    demonstration_style: str = ""
    """When set, the teacher rewrites the demonstrations in this style."""

    @property
    def is_empty(self) -> bool:
        """Nothing is proposed."""
        return not self.edits and not self.demonstration_style


def draft_faults(draft: ProposalDraft, findings: Findings) -> list[str]:
    """What is wrong with a draft before its edits are tried."""
    known = [error.fault for error in findings.errors]
    unknown = sorted(set(draft.targets) - set(known))
    if unknown:
        return [f"targets {unknown} are not among the findings {known}; name only these"]
    if not draft.is_empty and not draft.targets:
        return [f"no target is named; name at least one of {known}"]
    return []


def draft_messages(
    harness: Harness, findings: Findings, history: Sequence[PastProposal], budget: SizeBudget
) -> tuple[Message, ...]:
    """The prompt: the harness with its ids, the findings, the history and the size limits."""
    return fill_prompt(
        "proposer",
        harness=_harness_text(harness),
        findings=_findings_text(findings),
        history=_history_text(history),
        limits=_limits_text(budget),
    )


def _harness_text(harness: Harness) -> str:
    """Every part by name, with the ids and section names that edits refer to."""
    lines = [f"instructions (frozen): {harness.instructions}", f"how_to_use: {harness.bank.how_to_use}"]
    for number, skill in enumerate(harness.bank.skills, start=1):
        lines.append(f"skill {number}, skill_id {skill.skill_id}:")
        lines += [f"  {name}: {getattr(skill, name)}" for name in ("title", "trigger", "action", "guard", "check")]
    lines += [f"selection: {harness.protocol.selection}", f"execution: {harness.protocol.execution}"]
    for shown in harness.demonstrations:
        lines.append(f"demonstration, demonstration_id {shown.demonstration_id}:")
        lines += [f"  {name}: {text}" for name, text in shown.inputs.items()]
        lines.append(f"  completion: {shown.completion}")
    return "\n".join([*lines, f"output contract (frozen): {harness.output_contract}"])


def _findings_text(findings: Findings) -> str:
    lines = [f"{findings.failed} of {findings.scored} attempts failed."]
    for error in findings.errors:
        lines.append(f"- {error.fault}: {error.count} attempts, {error.share:.0%} of the failed ones.")
        lines += [f"  cause: {error.explanation}", f"  advice: {error.advice}"] if error.explanation else []
        lines += [f"  attempt {evidence.trace_id}: {evidence.quote}" for evidence in error.evidence]
    return "\n".join(lines)


def _history_text(history: Sequence[PastProposal]) -> str:
    lines: list[str] = []
    for past in history:
        scores = ""
        if past.incumbent_score is not None and past.candidate_score is not None:
            scores = f" ({past.incumbent_score:.4f} -> {past.candidate_score:.4f})"
        lines.append(f"- round {past.round_number}: {past.outcome}{scores}: {past.summary}")
    return "\n".join(lines) or "none yet"


def _limits_text(budget: SizeBudget) -> str:
    return "\n".join(f"- {name}: {bound}" for name, bound in budget.model_dump().items())
