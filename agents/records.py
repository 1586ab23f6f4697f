"""What each role returns: its result, and beside it what the role saw, said and spent.

Every result carries a :class:`RoleRecord`, so that a recorder can show the real inputs of a role
without knowing the role.
"""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from agents.llm.config import RoleName
from evals.evaluation import Evaluation
from harness.audit import Finding
from harness.edit import HarnessEdit
from harness.model import Demonstration, Harness
from harness.records import Record, Usage
from memory.records import DecisionRecord, Outcome


class Refusal(Record):
    """One answer of a model that was sent back, and the exact errors that went with it."""

    answer: JsonValue
    errors: tuple[str, ...]


class RoleRecord(Record):
    """One call of a role."""

    role: RoleName
    backend: str
    """``rules`` or the LiteLLM string."""
    saw: dict[str, JsonValue]
    """Real inputs in short: ids, counts, texts that decided."""
    wrote: dict[str, JsonValue]
    """The result in short."""
    said: str
    """One line for a person."""
    refusals: tuple[Refusal, ...] = ()
    """Answers that failed a check, in order."""
    usage: Usage = Usage()
    """Tokens and money of the role's own model calls."""


class Exploration(Record):
    """What the explorer measured."""

    evaluation: Evaluation
    record: RoleRecord


class Evidence(Record):
    """A quoted place in one trace."""

    trace_id: str
    task_id: str
    quote: str
    """What the attempt said, verbatim (its end, when it is long)."""
    detail: dict[str, JsonValue] = {}
    """The verifier's detail of the fault, for example where the route leaves the reference."""


class RecurringError(Record):
    """One fault that several attempts share."""

    fault: str
    """The verifier's fault kind."""
    count: int
    """Failed attempts that show it."""
    share: float
    """``count`` over all failed attempts; shares overlap where attempts have several faults."""
    weight: float
    """Share of the blame, 0..1: a failed attempt's blame is split evenly over its faults; weights sum to at most 1."""
    evidence: tuple[Evidence, ...]
    contrast_trace_ids: tuple[str, ...] = ()
    """Successful attempts at the tasks of this error's failures."""
    explanation: str = ""
    """A model's account of the cause; empty from the rules backend."""
    advice: str = ""
    """What a model would change in the harness; empty from the rules backend."""


class Findings(Record):
    """What a set of traces says about the harness under which they ran."""

    traces: int
    scored: int
    unscored: int
    failed: int
    """Scored attempts that are not exact."""
    errors: tuple[RecurringError, ...]
    """Most frequent first."""
    one_offs: dict[str, int] = {}
    """Faults too rare to act on, by count."""
    record: RoleRecord


class PastProposal(Record):
    """An earlier proposal and what the gate said of it."""

    round_number: int
    incumbent_id: str
    candidate_id: str = ""
    play_id: str = ""
    """The play behind it; empty for proposals of a language model."""
    summary: str = ""
    outcome: Outcome
    incumbent_score: float | None = None
    candidate_score: float | None = None


class SkippedPlay(Record):
    """A play that was drawn but cannot be made of this harness."""

    play_id: str
    reason: str


class Proposal(Record):
    """One complete candidate, or the record of why there is none."""

    status: Literal["proposed", "no_proposal"]
    source_id: str
    """Harness id of the version that was edited."""
    candidate: Harness | None = None
    edits: tuple[HarnessEdit, ...] = ()
    rationale: str
    play_id: str = ""
    targets: tuple[str, ...] = ()
    """Fault kinds that the proposal means to cure."""
    skipped: tuple[SkippedPlay, ...] = ()
    record: RoleRecord

    @property
    def candidate_id(self) -> str:
        """Harness id of the candidate; empty without one."""
        return self.candidate.harness_id if self.candidate else ""


class ExcludedTask(Record):
    """A task for which no verified demonstration came about."""

    task_id: str
    tries: int
    reasons: tuple[str, ...]
    """One per try."""


class Demonstrations(Record):
    """Verified worked examples, and the tasks that gave none."""

    accepted: tuple[Demonstration, ...]
    excluded: tuple[ExcludedTask, ...] = ()
    style: str
    record: RoleRecord


class Decision(Record):
    """The gate's word on one candidate."""

    outcome: Outcome
    incumbent_id: str
    candidate_id: str
    incumbent_score: float | None = None
    """b: mean over the compared tasks."""
    candidate_score: float | None = None
    """c: mean over the same tasks."""
    tasks: int = 0
    """n: tasks scored under both."""
    improved: tuple[str, ...] = ()
    """Task ids on which the candidate scores higher."""
    regressed: tuple[str, ...] = ()
    """Task ids on which it scores lower."""
    excluded: tuple[str, ...] = ()
    """Task ids left out because one side has no score."""
    unscored_share: float = 0.0
    """Unscored attempts over all attempts of both evaluations."""
    p_sign: float | None = None
    """Two-sided exact McNemar p over improved against regressed tasks; shown, never part of the rule."""
    p_paired: float | None = None
    """Two-sided paired t p over the task differences; shown, never part of the rule."""
    findings: tuple[Finding, ...] = ()
    """Faults of the deterministic audit."""
    reasons: tuple[str, ...]
    evaluations: tuple[str, ...] = ()
    """Evaluation ids, incumbent first."""
    record: RoleRecord

    def to_record(self, *, run_id: str, round_number: int, checkpoint_id: str, name: str = "gate") -> DecisionRecord:
        """The row that the store keeps."""
        statistics: dict[str, JsonValue] = {
            "tasks": self.tasks,
            "improved": list(self.improved),
            "regressed": list(self.regressed),
            "excluded": list(self.excluded),
            "unscored_share": self.unscored_share,
            "p_sign": self.p_sign,
            "p_paired": self.p_paired,
            "findings": [finding.model_dump(mode="json") for finding in self.findings],
        }
        return DecisionRecord(
            run_id=run_id,
            round_number=round_number,
            name=name,
            outcome=self.outcome,
            checkpoint_id=checkpoint_id,
            incumbent_id=self.incumbent_id,
            candidate_id=self.candidate_id,
            incumbent_score=self.incumbent_score,
            candidate_score=self.candidate_score,
            reason="; ".join(self.reasons),
            statistics=statistics,
            evaluations=self.evaluations,
        )


class Contender(Record):
    """A pair that the selector may pick."""

    pair_id: str
    checkpoint_id: str
    harness_id: str
    val_score: float
    round_number: int = 0
    note: str = ""


class Selection(Record):
    """The pair that was picked, and why."""

    pair_id: str
    index: int
    """Its place among the contenders, from 0."""
    val_score: float
    reason: str
    record: RoleRecord
