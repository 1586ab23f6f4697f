"""The gate: deterministic audit first, then the measured comparison; no model ever overrules it.

    audit finds a fault             -> reject, nothing needs to be measured
    too many attempt pairs unscored -> refuse, the incumbent stays
    c > b                           -> accept
    c = b                           -> tie, the incumbent stays
    c < b                           -> reject

b and c are means over the same val tasks under the same weights, decoding and seeds; an attempt that
one side could not score leaves both. The p values are shown and are no part of the rule.
Source: METHODS §1, steps 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, JsonValue

from agents.llm.config import RULES
from agents.records import Decision, RoleRecord
from evals.evaluation import EmptyMean, Evaluation, PairedScores, pair_evaluations
from evals.statistics import mean, paired_t, sign_test
from harness.audit import AuditRules, Finding, audit_candidate
from harness.model import Harness
from harness.records import Record
from memory.records import Outcome

SCORE_TOLERANCE = 1e-9
"""Means and task scores closer than this are equal."""


class GateConfig(Record):
    """What the gate demands."""

    rule: Literal["strictly_better", "legal"] = "strictly_better"
    """``legal`` commits every candidate that passes the audit (the arm without a gate); scores are still shown."""
    max_unscored_share: float = Field(default=0.05, ge=0, lt=1)
    """Attempt pairs without a score on both sides, over all pairs; above it the gate refuses to decide."""
    audit: AuditRules = AuditRules()
    """Size budget, admitted demonstration tasks and protected texts."""


class Gate:
    """Decides whether a candidate replaces the incumbent."""

    def __init__(self, config: GateConfig | None = None) -> None:
        self.config = config or GateConfig()

    def judge(
        self,
        incumbent: Harness,
        candidate: Harness | None,
        *,
        incumbent_evaluation: Evaluation | None = None,
        candidate_evaluation: Evaluation | None = None,
    ) -> Decision:
        """Judge one candidate.

        Args:
            incumbent: the version in use.
            candidate: the proposed version; None when nothing was proposed, which keeps the incumbent.
            incumbent_evaluation: b's measurement on val, at the new weights.
            candidate_evaluation: c's; may be missing when the audit finds a fault.

        Raises:
            ValueError: the evaluations are not of these versions, not on val, or were not measured alike.
        """
        findings = tuple(audit_candidate(incumbent, candidate, self.config.audit)) if candidate else ()
        evaluations = [item for item in (incumbent_evaluation, candidate_evaluation) if item is not None]
        _refuse_foreign(incumbent, candidate, incumbent_evaluation, candidate_evaluation)
        paired: PairedScores | None = None
        failure = ""
        if incumbent_evaluation is not None and candidate_evaluation is not None:
            try:
                paired = pair_evaluations(incumbent_evaluation, candidate_evaluation)
            except EmptyMean as error:
                failure = str(error)
        outcome, reasons = self._decide(candidate, findings, paired, failure)
        scores = _scores(paired, incumbent_evaluation)
        return _decision(incumbent, candidate, outcome, reasons, findings, scores, evaluations)

    def _decide(
        self, candidate: Harness | None, findings: Sequence[Finding], paired: PairedScores | None, failure: str
    ) -> tuple[Outcome, tuple[str, ...]]:
        """The whole rule."""
        if candidate is None:
            return "reject", ("no candidate was proposed",)
        if findings:
            return "reject", tuple(f"{item.code} at {item.where}: {item.message}" for item in findings)
        if self.config.rule == "legal":
            return "accept", ("every legal effective edit commits under this rule",)
        if paired is None:
            return "refuse", (failure or "the candidate was not measured",)
        limit = self.config.max_unscored_share
        if paired.excluded_share > limit:
            return "refuse", (
                f"{paired.excluded} of {paired.attempts} attempt pairs have no score on both sides "
                f"({paired.excluded_share:.1%}, at most {limit:.1%} allowed); mend the engine and evaluate again",
            )
        before, after = mean(paired.incumbent), mean(paired.candidate)
        if abs(after - before) <= SCORE_TOLERANCE:
            return "tie", (f"c = b = {before:.4f} over {len(paired.task_ids)} tasks; a tie keeps the incumbent",)
        sign = ">" if after > before else "<"
        outcome: Outcome = "accept" if after > before else "reject"
        return outcome, (f"c = {after:.4f} {sign} b = {before:.4f} over {len(paired.task_ids)} tasks",)


def _refuse_foreign(
    incumbent: Harness, candidate: Harness | None, before: Evaluation | None, after: Evaluation | None
) -> None:
    """The measurements must be of these two versions, on val, under one set of weights and one engine."""
    for role, version, evaluation in (("incumbent", incumbent, before), ("candidate", candidate, after)):
        if evaluation is None:
            continue
        wanted = version.harness_id if version else None
        if evaluation.harness_id != wanted:
            raise ValueError(
                f"judging failed; the {role}'s evaluation is of {evaluation.harness_id}, expected {wanted}"
            )
        if evaluation.split != "val":
            raise ValueError(f"judging failed; the {role} was measured on {evaluation.split!r}, expected 'val'")
    if before is None or after is None:
        return
    for name in ("policy_id", "engine"):
        one, two = getattr(before, name), getattr(after, name)
        if one != two:
            raise ValueError(f"judging failed; evaluations differ in {name}: {one!r} and {two!r}; measure both alike")


def _scores(paired: PairedScores | None, incumbent: Evaluation | None) -> dict[str, object]:
    """The measured fields of a decision."""
    if paired is None:
        if incumbent is None:
            return {}
        return {"incumbent_score": incumbent.mean, "unscored_share": incumbent.unscored_share}
    differences = list(zip(paired.task_ids, paired.differences, strict=True))
    improved = tuple(task_id for task_id, difference in differences if difference > SCORE_TOLERANCE)
    regressed = tuple(task_id for task_id, difference in differences if difference < -SCORE_TOLERANCE)
    return {
        "incumbent_score": mean(paired.incumbent),
        "candidate_score": mean(paired.candidate),
        "tasks": len(paired.task_ids),
        "improved": improved,
        "regressed": regressed,
        "excluded": paired.excluded_tasks,
        "unscored_share": paired.excluded_share,
        "p_sign": sign_test(len(improved), len(regressed)),
        "p_paired": paired_t(paired.differences).p_value if len(differences) > 1 else None,
    }


def _decision(
    incumbent: Harness,
    candidate: Harness | None,
    outcome: Outcome,
    reasons: tuple[str, ...],
    findings: Sequence[Finding],
    scores: dict[str, object],
    evaluations: Sequence[Evaluation],
) -> Decision:
    candidate_id = candidate.harness_id if candidate else ""
    ids: list[JsonValue] = [evaluation.evaluation_id for evaluation in evaluations]
    draft = Decision.model_validate(
        {
            "outcome": outcome,
            "incumbent_id": incumbent.harness_id,
            "candidate_id": candidate_id,
            "findings": tuple(findings),
            "reasons": reasons,
            "evaluations": tuple(ids),
            **scores,
            "record": RoleRecord(role="gate", backend=RULES, saw={}, wrote={}, said=""),
        }
    )
    record = RoleRecord(
        role="gate",
        backend=RULES,
        saw={"incumbent_id": incumbent.harness_id, "candidate_id": candidate_id, "evaluations": ids},
        wrote=draft.model_dump(
            mode="json",
            include={
                "outcome", "incumbent_score", "candidate_score", "tasks", "improved", "regressed", "excluded",
                "unscored_share", "p_sign", "p_paired", "findings", "reasons",
            },
        ),
        said=f"{outcome}: {'; '.join(reasons)}",
    )  # fmt: skip
    return draft.model_copy(update={"record": record})
