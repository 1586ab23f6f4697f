"""The proposer: findings in, one complete candidate harness out.

The rules backend draws a fault by its share of the blame and then a play of the suite's playbook
filed under that fault (:mod:`agents.draw`). It knows nothing of what plays do: its choice is a
function of the traces, the history and the seed. A language model writes typed edits itself; an
invalid proposal goes back with the exact audit error, at most three times, then none is recorded.
Source: METHODS §1, step 2.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from agents.ask import RoleModel, ask_checked, backend_name, total_usage
from agents.candidate import BuiltCandidate, CandidateBuilder
from agents.draw import draw_play
from agents.proposal_draft import ProposalDraft, draft_faults, draft_messages
from agents.records import Findings, PastProposal, Proposal, Refusal, RoleRecord, SkippedPlay
from agents.teacher import Teacher
from evals.suites.base import Suite
from harness.audit import AuditRules
from harness.model import Harness
from harness.records import Usage


@dataclass(frozen=True)
class _Question:
    """What the proposer was asked."""

    harness: Harness
    findings: Findings
    history: Sequence[PastProposal]
    seed: int


@dataclass(frozen=True)
class _Outcome:
    """What came of it; without ``built`` there is no proposal."""

    rationale: str
    built: BuiltCandidate | None = None
    play_id: str = ""
    targets: tuple[str, ...] = ()
    skipped: tuple[SkippedPlay, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    usage: Usage = Usage()


class Proposer:
    """Turns findings into complete candidates."""

    def __init__(
        self,
        suite: Suite,
        teacher: Teacher,
        *,
        model: RoleModel | None = None,
        rules: AuditRules | None = None,
        max_tries: int = 3,
    ) -> None:
        """Choose suite, teacher and backend.

        Args:
            suite: gives the playbook and the train tasks of demonstrations.
            teacher: rewrites demonstrations where a proposal asks for another style.
            model: writes the edits; None is the ``rules`` backend.
            rules: what the deterministic gate will check; the proposer checks it first.
            max_tries: invalid proposals of a model before none is recorded.
        """
        self._suite = suite
        self._builder = CandidateBuilder(suite, teacher, rules or AuditRules())
        self._model = model
        self._max_tries = max_tries

    async def propose(
        self, harness: Harness, findings: Findings, *, history: Sequence[PastProposal], seed: int
    ) -> Proposal:
        """Make one complete candidate from ``harness``.

        Args:
            harness: the incumbent.
            findings: what went wrong under it.
            history: earlier proposals of this run with the gate's word on each.
            seed: decides the rules backend's draw, together with findings and history.

        Returns:
            A proposal whose candidate passes the deterministic audit, or one without a candidate and the reason.
        """
        question = _Question(harness, findings, history, seed)
        if not findings.errors:
            outcome = _Outcome("no error recurs, so nothing is proposed")
        elif self._model is not None:
            outcome = await self._ask(self._model, question)
        else:
            outcome = await self._draw(question)
        return self._proposal(question, outcome)

    async def _draw(self, question: _Question) -> _Outcome:
        """Draw plays until one makes a legal candidate of this harness."""
        rng, playbook = random.Random(question.seed), self._suite.playbook()
        errors = question.findings.errors
        skipped: list[SkippedPlay] = []
        usages: list[Usage] = []
        while True:
            barred = [play.play_id for play in skipped]
            drawn = draw_play(playbook, errors, question.history, rng, barred=barred)
            if drawn is None:
                reason = f"no play is open for {[error.fault for error in errors]}"
                return _Outcome(reason, skipped=tuple(skipped), usage=total_usage(usages))
            play = drawn.play
            built = await self._builder.build(
                question.harness, play.edits, demonstration_style=play.demonstration_style
            )
            usages.append(built.usage)
            if not built.errors:
                break
            skipped.append(SkippedPlay(play_id=play.play_id, reason="; ".join(built.errors)))
        share = next(error.share for error in errors if error.fault == drawn.fault)
        return _Outcome(
            f"{share:.0%} of the failed attempts show {drawn.fault}. {play.summary}",
            built=built,
            play_id=play.play_id,
            targets=(drawn.fault,),
            skipped=tuple(skipped),
            usage=total_usage(usages),
        )

    async def _ask(self, model: RoleModel, question: _Question) -> _Outcome:
        """Have a model write edits until they make a legal candidate, or it proposes nothing."""
        built: BuiltCandidate | None = None
        usages: list[Usage] = []

        async def check(draft: ProposalDraft) -> list[str]:
            nonlocal built
            built = None
            problems = draft_faults(draft, question.findings)
            if draft.is_empty or problems:
                return problems
            built = await self._builder.build(
                question.harness, draft.edits, demonstration_style=draft.demonstration_style
            )
            usages.append(built.usage)
            return [*built.errors, *_repeats(built, question)]

        messages = draft_messages(question.harness, question.findings, question.history, self._builder.rules.budget)
        answer = await ask_checked(
            model, messages, ProposalDraft, purpose="propose", check=check, max_tries=self._max_tries
        )
        draft, usage = answer.value, total_usage([answer.usage, *usages])
        if draft is None:
            last = "; ".join(answer.refusals[-1].errors)
            reason = f"no valid proposal in {len(answer.refusals)} answers; the last: {last}"
            return _Outcome(reason, refusals=answer.refusals, usage=usage)
        return _Outcome(draft.rationale, built=built, targets=draft.targets, refusals=answer.refusals, usage=usage)

    def _proposal(self, question: _Question, outcome: _Outcome) -> Proposal:
        candidate = outcome.built.candidate if outcome.built else None
        edits = outcome.built.edits if outcome.built else ()
        saw: dict[str, JsonValue] = {
            "harness_id": question.harness.harness_id,
            "errors": {error.fault: round(error.weight, 4) for error in question.findings.errors},
            "history": [past.model_dump(mode="json") for past in question.history],
            "seed": question.seed,
        }
        wrote: dict[str, JsonValue] = {
            "candidate_id": candidate.harness_id if candidate else "",
            "play_id": outcome.play_id,
            "edits": [edit.model_dump(mode="json") for edit in edits],
            "skipped": {play.play_id: play.reason for play in outcome.skipped},
        }
        headline = (outcome.play_id or f"{len(edits)} edits") if candidate else "no proposal"
        return Proposal(
            status="proposed" if candidate else "no_proposal",
            source_id=question.harness.harness_id,
            candidate=candidate,
            edits=edits,
            rationale=outcome.rationale,
            play_id=outcome.play_id,
            targets=outcome.targets,
            skipped=outcome.skipped,
            record=RoleRecord(
                role="proposer",
                backend=backend_name(self._model),
                saw=saw,
                wrote=wrote,
                said=f"{headline}: {outcome.rationale}",
                refusals=outcome.refusals,
                usage=outcome.usage,
            ),
        )


def _repeats(built: BuiltCandidate, question: _Question) -> list[str]:
    """A candidate that was measured before under the same incumbent teaches nothing new."""
    if built.candidate is None:
        return []
    candidate_id, source_id = built.candidate.harness_id, question.harness.harness_id
    return [
        f"this candidate was proposed in round {past.round_number} (gate: {past.outcome}); change something else"
        for past in question.history
        if past.candidate_id == candidate_id and past.incumbent_id == source_id
    ][:1]
