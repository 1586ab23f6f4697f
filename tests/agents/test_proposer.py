"""One complete, legal candidate or a recorded no-proposal; the rules backend is a function of traces and seed."""

import json

import pytest
from metro_cases import HARNESS, SUITE, TRAIN, clipped, good, trace
from scripted_model import UnseenPrompt, scripted

from agents.diagnoser import Diagnoser
from agents.proposer import Proposer
from agents.records import PastProposal, Proposal
from agents.teacher import Teacher
from evals.suites.base import Play
from evals.suites.metro import MetroSuite
from harness.audit import AuditRules, SizeBudget, audit_candidate
from harness.edit import AddDemonstration, AppendExecution, DeleteSkill, apply_edits

TEACHER = Teacher(SUITE)
SKILL_ID = HARNESS.bank.skills[0].skill_id


async def findings(completions=None):
    """Real findings of clipped routes (wrong endpoint, diverging station)."""
    shown = completions or [clipped(task) for task in TRAIN[:3]]
    traces = [trace(task, text) for task, text in zip(TRAIN[:3], shown, strict=True)]
    return await Diagnoser().diagnose(traces, TRAIN, harness=HARNESS)


async def propose(*, seed=0, history=(), harness=HARNESS, suite=SUITE, **options) -> Proposal:
    return await Proposer(suite, TEACHER, **options).propose(harness, await findings(), history=history, seed=seed)


def past(play_id="", outcome="reject", candidate_id="h") -> PastProposal:
    return PastProposal(
        round_number=1, incumbent_id=HARNESS.harness_id, candidate_id=candidate_id, play_id=play_id, outcome=outcome
    )


@pytest.mark.parametrize("seed", range(12))
async def test_every_rules_candidate_passes_the_audit_and_is_its_edits_applied(seed):
    proposal = await propose(seed=seed)
    assert proposal.status == "proposed"
    assert audit_candidate(HARNESS, proposal.candidate) == []
    assert apply_edits(HARNESS, proposal.edits) == proposal.candidate
    play = next(play for play in SUITE.playbook() if play.play_id == proposal.play_id)
    assert set(proposal.targets) <= set(play.faults)


async def test_the_same_traces_history_and_seed_give_the_same_candidate():
    first, second = await propose(seed=3), await propose(seed=3)
    assert first == second
    assert len({(await propose(seed=seed)).candidate_id for seed in range(12)}) > 3


async def test_no_recurring_error_gives_no_proposal():
    found = await findings([good(task) for task in TRAIN[:3]])
    proposal = await Proposer(SUITE, TEACHER).propose(HARNESS, found, history=(), seed=0)
    assert (proposal.status, proposal.candidate, proposal.candidate_id) == ("no_proposal", None, "")


class OnePlay(MetroSuite):
    """The metro suite with a playbook chosen by the test."""

    plays: tuple[Play, ...] = ()

    def playbook(self):
        return self.plays


def suite_with(*plays: Play) -> OnePlay:
    suite = OnePlay("pocket", 0, counts={"train": 8, "val": 4, "test": 4})
    suite.plays = plays
    return suite


async def test_a_play_that_this_harness_cannot_take_is_skipped_with_the_reason():
    lost = Play(play_id="lost", faults=("wrong_endpoint",), summary="s", edits=(DeleteSkill(skill_id="s9"),))
    proposal = await propose(suite=suite_with(lost))
    assert proposal.status == "no_proposal"
    assert [play.play_id for play in proposal.skipped] == ["lost"]
    assert "no skill has id 's9'" in proposal.skipped[0].reason
    fine = Play(play_id="fine", faults=("wrong_endpoint",), summary="s", edits=(AppendExecution(text="Go on."),))
    assert (await propose(suite=suite_with(lost, fine))).play_id == "fine"


async def test_a_play_without_effect_is_no_candidate():
    idle = Play(play_id="idle", faults=("wrong_endpoint",), summary="s", edits=(AppendExecution(text="  "),))
    proposal = await propose(suite=suite_with(idle))
    assert "no_effective_edit" in proposal.skipped[0].reason


async def test_a_play_that_restyles_demonstrations_asks_the_teacher():
    shown = (await TEACHER.demonstrate(HARNESS, TRAIN[:2], style="direct")).accepted
    harness = apply_edits(HARNESS, [AddDemonstration(demonstration=one) for one in shown])
    restyle = Play(play_id="restyle", faults=("wrong_endpoint",), summary="s", demonstration_style="hops")
    proposal = await propose(harness=harness, suite=suite_with(restyle))
    after = proposal.candidate.demonstrations
    assert [one.completion for one in after] == [SUITE.solve(task, style="hops") for task in TRAIN[:2]]
    assert [one.demonstration_id for one in after] == [one.demonstration_id for one in shown]
    # Without demonstrations the same play changes nothing and is skipped.
    assert (await propose(suite=suite_with(restyle))).skipped[0].play_id == "restyle"


def draft(*edits, targets=("wrong_endpoint",), style="", rationale="Routes end early.") -> str:
    body = {"rationale": rationale, "targets": list(targets), "edits": list(edits), "demonstration_style": style}
    return json.dumps(body)


APPEND = {"op": "append_execution", "text": "Go on to the destination."}


async def test_a_model_writes_typed_edits():
    proposal = await propose(model=scripted("proposer", ("wrong_endpoint", draft(APPEND))))
    assert proposal.candidate.protocol.execution.endswith("Go on to the destination.")
    assert (proposal.rationale, proposal.targets) == ("Routes end early.", ("wrong_endpoint",))
    assert proposal.record.usage.completion_tokens == 10


async def test_an_invalid_proposal_goes_back_with_the_exact_error_and_can_be_mended():
    anchor = {"op": "replace_text", "section": "execution", "skill_id": "", "anchor": "nowhere", "text": "x"}
    model = scripted(
        "proposer",
        ("Size limits", draft(anchor)),
        ("anchor 'nowhere' occurs 0 times in execution", draft(APPEND)),
    )
    proposal = await propose(model=model)
    assert proposal.status == "proposed"
    assert len(proposal.record.refusals) == 1


async def test_three_invalid_proposals_are_recorded_as_none():
    long = {"op": "set_execution", "text": "x" * 101}
    model = scripted(
        "proposer",
        ("Size limits", draft(long)),
        ("section_too_long at protocol.execution: protocol.execution has 101", draft(APPEND, targets=("luck",))),
        ("targets ['luck'] are not among the findings", draft({"op": "delete_skill", "skill_id": "s9"})),
    )
    proposal = await propose(model=model, rules=AuditRules(budget=SizeBudget(execution_chars=100)))
    assert (proposal.status, len(proposal.record.refusals)) == ("no_proposal", 3)
    assert "no skill has id 's9'" in proposal.rationale


async def test_a_model_may_propose_nothing():
    proposal = await propose(model=scripted("proposer", ("Size", draft(rationale="Too little evidence.", targets=()))))
    assert (proposal.status, proposal.rationale) == ("no_proposal", "Too little evidence.")


async def test_a_candidate_that_was_judged_before_is_sent_back():
    known = apply_edits(HARNESS, [AppendExecution(text=APPEND["text"])]).harness_id
    other = {"op": "append_execution", "text": "Stop at the destination, not before."}
    model = scripted("proposer", ("reject", draft(APPEND)), ("was proposed in round 1 (gate: reject)", draft(other)))
    proposal = await propose(model=model, history=[past(candidate_id=known)])
    assert proposal.candidate_id not in ("", known)


async def test_a_model_cannot_write_a_demonstration_itself():
    shown = {"demonstration_id": "d", "task_id": "t", "inputs": {}, "completion": "c"}
    edit = {"op": "add_demonstration", "demonstration": shown}
    model = scripted("proposer", ("Size", draft(edit)), ("add_demonstration", draft(APPEND)))
    assert (await propose(model=model)).status == "proposed"


async def test_the_scripted_model_fails_loudly_on_an_unseen_prompt():
    with pytest.raises(UnseenPrompt):
        await propose(model=scripted("proposer", ("something else", draft(APPEND))))
