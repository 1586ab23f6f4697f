"""The order of nodes and the bookkeeping of each condition, with a crew whose answers are written down here."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from graphs.config import RunConfig
from graphs.events import ignore
from graphs.recorder import Recorder
from graphs.vace import Context, build
from memory.store import Store


@dataclass
class ScriptedCrew:
    """Val score of (weights, harness) is written down; an unknown pair fails loudly."""

    scores: dict[tuple[str, str], float]
    is_limit_reached: bool = False
    is_legal_enough: bool = False
    called: list[str] = field(default_factory=list)
    judged: dict[str, str] = field(default_factory=dict)
    parents: list[str] = field(default_factory=list)
    histories: list[list[str]] = field(default_factory=list)
    reported: list[tuple[str, str]] = field(default_factory=list)

    def write_demonstrations(self, count):
        return "h0"

    def base_checkpoint(self):
        return "c0"

    def deploy(self, checkpoint_id, harness_id):
        return self._committed(checkpoint_id, harness_id)

    def _committed(self, checkpoint_id, harness_id):
        score = self.scores[checkpoint_id, harness_id]
        return SimpleNamespace(pair_id=f"{checkpoint_id}/{harness_id}", harness_id=harness_id, score=score)

    def train(self, checkpoint_id, harness_id, plan):
        block = sum(call.startswith("train") for call in self.called)
        self.called.append(f"train {checkpoint_id} {harness_id}")
        return SimpleNamespace(checkpoint_id=f"c{int(checkpoint_id[1:]) + 1}", evidence_key=f"block-{block}")

    def explore(self, checkpoint_id, harness_id, *, count, round_number):
        self.called.append(f"explore {checkpoint_id} {harness_id}")
        return f"explored-{round_number}"

    def diagnose(self, evidence_key, harness_id):
        self.called.append(f"diagnose {evidence_key}")
        return f"findings-of-{evidence_key}"

    def propose(self, harness_id, findings_key, trials, *, round_number):
        self.histories.append([trial["proposal_key"] for trial in trials])
        return SimpleNamespace(key=f"proposal-{round_number}", candidate_id=f"{harness_id}+{round_number}")

    def judge(self, checkpoint_id, harness_id, candidate_id):
        key = f"decision-{len(self.judged)}"
        if not candidate_id:
            outcome = "none"
        elif self.is_legal_enough:
            outcome = "accept"
        else:
            better = self.scores[checkpoint_id, candidate_id] > self.scores[checkpoint_id, harness_id]
            outcome = "accept" if better else "reject"
        self.judged[key] = candidate_id if outcome == "accept" else harness_id
        self.called.append(f"gate {checkpoint_id} {harness_id} vs {candidate_id or '-'}: {outcome}")
        return SimpleNamespace(key=key, outcome=outcome)

    def commit(self, checkpoint_id, parent_id, decision_key, *, round_number):
        self.parents.append(parent_id)
        return self._committed(checkpoint_id, self.judged[decision_key])

    def exhausted(self, spent):
        return "budget.max_tokens reached" if self.is_limit_reached else ""

    def select(self, pairs):
        return max(range(len(pairs)), key=lambda index: pairs[index]["val_score"])

    def report(self, first, final, *, facts):
        self.reported = [(pair["checkpoint_id"], pair["harness_id"]) for pair in (first, final)]
        return "report-1"


def _run(tmp_path, condition, scores, *, rounds=2, is_limit_reached=False):
    config = RunConfig.model_validate(
        {"suite": {"type": "metro"}, "strategy": {"type": "vace", "condition": condition, "rounds": rounds}}
    )
    crew = ScriptedCrew(scores, is_limit_reached, is_legal_enough=condition == "whale")
    with Store.open(tmp_path) as store:
        context = Context(config=config, crew=crew, recorder=Recorder(store.steps, "run", ignore))
        state = build(config).compile().invoke({}, {"recursion_limit": 200}, context=context)
        return crew, state, store.steps.list("run")


# Weights 1 favour the first candidate, weights 2 reject the second one.
VACE_SCORES = {
    ("c0", "h0"): 0.3, ("c1", "h0"): 0.4, ("c1", "h0+0"): 0.5, ("c2", "h0+0"): 0.6, ("c2", "h0+0+1"): 0.55,
}  # fmt: skip


def test_vace_trains_then_gates_at_the_new_weights_and_keeps_weights_when_it_rejects(tmp_path):
    crew, state, _ = _run(tmp_path, "vace", VACE_SCORES)
    assert crew.called == [
        "train c0 h0",
        "diagnose block-0",
        "gate c1 h0 vs h0+0: accept",
        "train c1 h0+0",
        "diagnose block-1",
        "gate c2 h0+0 vs h0+0+1: reject",
    ]
    pairs = [(pair["checkpoint_id"], pair["harness_id"], pair["val_score"]) for pair in state["pairs"]]
    # the rejected round still deploys the new weights c2, under the incumbent harness
    assert pairs == [("c0", "h0", 0.3), ("c1", "h0+0", 0.5), ("c2", "h0+0", 0.6)]
    assert crew.reported == [("c0", "h0"), ("c2", "h0+0")]
    assert state["stop_reason"] == "all rounds finished"
    assert crew.parents == ["c0/h0", "c1/h0+0"]  # each pair comes from the pair that was in force
    assert crew.histories == [[], ["proposal-0"]]  # the second proposal knows the first one


def test_whale_goes_on_with_whatever_harness_was_committed(tmp_path):
    crew, state, _ = _run(tmp_path, "whale", {**VACE_SCORES, ("c1", "h0+0"): 0.1})
    assert [pair["harness_id"] for pair in state["pairs"]] == ["h0", "h0+0", "h0+0+1"]
    assert "gate c1 h0 vs h0+0: accept" in crew.called


def test_static_neither_trains_nor_proposes(tmp_path):
    crew, state, steps = _run(tmp_path, "static", {("c0", "h0"): 0.3})
    assert crew.called == []
    assert [step.node for step in steps] == ["seed", "baseline", "select", "report"]
    assert crew.reported == [("c0", "h0"), ("c0", "h0")]


def test_rl_only_measures_each_block_under_the_first_harness(tmp_path):
    scores = {("c0", "h0"): 0.3, ("c1", "h0"): 0.5, ("c2", "h0"): 0.4}
    crew, state, _ = _run(tmp_path, "rl-only", scores)
    assert crew.called == ["train c0 h0", "gate c1 h0 vs -: none", "train c1 h0", "gate c2 h0 vs -: none"]
    assert crew.reported[1] == ("c1", "h0")  # the best-val pair, not the last one


def test_harness_only_never_changes_the_weights(tmp_path):
    scores = {("c0", "h0"): 0.3, ("c0", "h0+0"): 0.2, ("c0", "h0+1"): 0.35}
    crew, state, _ = _run(tmp_path, "harness-only", scores)
    assert crew.called == [
        "explore c0 h0",
        "diagnose explored-0",
        "gate c0 h0 vs h0+0: reject",
        "explore c0 h0",
        "diagnose explored-1",
        "gate c0 h0 vs h0+1: accept",
    ]
    assert crew.parents == ["c0/h0", "c0/h0"]
    # the rejected round deploys the first pair again; it is listed once
    assert [pair["harness_id"] for pair in state["pairs"]] == ["h0", "h0+1"]
    assert state["policy_id"] == "c0"


def test_sia_finds_a_harness_first_and_then_trains_under_the_best_one(tmp_path):
    scores = {
        ("c0", "h0"): 0.3, ("c0", "h0+0"): 0.4, ("c0", "h0+0+1"): 0.4,
        ("c1", "h0+0"): 0.5, ("c2", "h0+0"): 0.6,
    }  # fmt: skip
    crew, state, steps = _run(tmp_path, "sia", scores)
    assert crew.called[-4:] == [
        "train c0 h0+0", "gate c1 h0+0 vs -: none", "train c1 h0+0", "gate c2 h0+0 vs -: none",
    ]  # fmt: skip
    assert [step.node for step in steps].count("adopt") == 1
    assert crew.parents[-2:] == ["c0/h0+0", "c1/h0+0"]
    assert crew.reported == [("c0", "h0"), ("c2", "h0+0")]


def test_a_reached_limit_ends_the_loop_after_its_round_and_still_reports(tmp_path):
    crew, state, steps = _run(tmp_path, "vace", VACE_SCORES, rounds=2, is_limit_reached=True)
    assert state["round"] == 1
    assert state["stop_reason"] == "budget.max_tokens reached"
    assert [step.node for step in steps][-2:] == ["select", "report"]


def test_every_node_leaves_one_step_with_what_it_read_and_wrote(tmp_path):
    _, _, steps = _run(tmp_path, "vace", VACE_SCORES, rounds=1)
    assert [step.node for step in steps] == [
        "seed", "baseline", "train", "diagnose", "propose", "gate", "commit", "select", "report",
    ]  # fmt: skip
    assert [step.number for step in steps] == sorted({step.number for step in steps})
    gate = steps[5]
    assert gate.read == {"policy_id": "c1", "harness_id": "h0", "candidate_id": "h0+0"}
    assert gate.wrote["decision"] == "accept"


@pytest.mark.parametrize("condition", ["vace", "static", "harness-only", "rl-only", "sia", "whale"])
def test_all_conditions_are_routes_through_one_set_of_nodes(condition):
    config = RunConfig.model_validate({"suite": {"type": "metro"}, "strategy": {"condition": condition}})
    nodes = set(build(config).nodes)
    assert nodes == {
        "seed", "baseline", "train", "explore", "diagnose", "propose", "gate", "commit", "adopt", "select", "report",
    }  # fmt: skip
