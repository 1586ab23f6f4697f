"""VACE: alternate RL blocks and gated harness proposals, so that weights and harness improve each other.

    START -> seed -> baseline --+--> train ---+--> diagnose -> propose --> gate -> commit --+--> select -> report -> END
                                |             +------------------------>  |                 |
                                +--> explore ----> diagnose               |                 |
                                ^                                                           |
                                +----------- next round <- (sia: adopt) <-------------------+

The six conditions are routes through the same nodes:

    vace          train, diagnose, propose, gate, commit, every round
    whale         the same, and the gate measures the candidate but does not decide: legal edits commit
    rl-only       train, gate (measures the incumbent alone), commit
    harness-only  explore, diagnose, propose, gate, commit; the weights never change
    sia           harness-only for T rounds; adopt its best harness; then rl-only for T rounds under it
    static        neither; select and report the first pair

Cost of a round: one RL block (rollout_steps x prompts x group size attempts, and the updates), one
diagnosis, one proposal, and at most two val evaluations. Report: three test evaluations of the best
pair and three of the first pair.

What survives a restart: the state below (checkpointed after every node) and, in the stores, every
finished piece of work; a node that runs again finds its work in the ledger, so a resumed run ends in
the same state and the same weights as an unbroken one.

Source: METHODS §1; differs: nothing known. The val seeds are the same in every round, so a pair's
score is measured once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from graphs.config import RunConfig, VaceConfig
from graphs.crew import Crew
from graphs.desk import Committed
from graphs.recorder import Recorder, recorded
from graphs.state import PairScore, Spent, Trial, add_spent, latest, merge_pairs, merge_trials

Phase = Literal["alternate", "harness", "weights"]
Config = VaceConfig


class State(TypedDict, total=False):
    """Ids, counters and decisions; everything large is in the stores."""

    phase: Annotated[Phase, latest]
    """``alternate`` for vace and whale; ``harness`` and ``weights`` for the one-sided conditions."""
    round: Annotated[int, latest]
    """Finished rounds of this phase."""
    policy_id: Annotated[str, latest]
    """Checkpoint id of the current weights, always the newest (``checkpoint_id`` is a reserved word of LangGraph)."""
    harness_id: Annotated[str, latest]
    """The incumbent harness."""
    evidence_key: Annotated[str, latest]
    """Ledger key of the round's traces: the RL block's own, or the explorer's."""
    findings_key: Annotated[str, latest]
    """Ledger key of the diagnoser's findings."""
    proposal_key: Annotated[str, latest]
    """Ledger key of the round's proposal."""
    candidate_id: Annotated[str, latest]
    """The proposed harness; empty when the round has none."""
    decision_key: Annotated[str, latest]
    """Ledger key of the gate's decision."""
    decision: Annotated[str, latest]
    """The gate's word of the last round."""
    trials: Annotated[list[Trial], merge_trials]
    """Every proposal with the gate's word on it, in order; the next proposal reads them."""
    pair_id: Annotated[str, latest]
    """The pair in force."""
    pairs: Annotated[list[PairScore], merge_pairs]
    """Every pair that was deployed, with its val score, in order."""
    spent: Annotated[Spent, add_spent]
    """Tokens, money and evaluations so far."""
    stop_reason: Annotated[str, latest]
    """Why the loop ended; empty while it goes on."""
    selected: Annotated[int, latest]
    """Index in ``pairs`` of the pair that the selector chose."""
    report_key: Annotated[str, latest]
    """Ledger key of the test report."""


@dataclass(frozen=True)
class Context:
    """Collaborators, injected by :mod:`graphs.assembly`."""

    config: RunConfig
    crew: Crew
    """The six roles, the trainer and the stores behind one door, with the work ledger."""
    recorder: Recorder
    """Writes one step per executed node."""

    @property
    def strategy(self) -> VaceConfig:
        """The graph's own settings."""
        strategy = self.config.strategy
        assert isinstance(strategy, VaceConfig), f"this graph is for strategy.type=vace, got {strategy.type}"
        return strategy


def seed(state: State, runtime: Runtime[Context]) -> State:
    """Take the suite's seed harness, add the teacher's verified demonstrations, name the first weights."""
    crew, strategy = runtime.context.crew, runtime.context.strategy
    harness_id = crew.write_demonstrations(strategy.seed_demonstrations)
    phases: dict[str, Phase] = {"harness-only": "harness", "sia": "harness", "rl-only": "weights"}
    phase = phases.get(strategy.condition, "alternate")
    return {"phase": phase, "round": 0, "policy_id": crew.base_checkpoint(), "harness_id": harness_id}


def baseline(state: State, runtime: Runtime[Context]) -> State:
    """Measure the first pair on val and put it into force."""
    first = runtime.context.crew.deploy(state["policy_id"], state["harness_id"])
    return {"pair_id": first.pair_id, "pairs": [_pair(state, first, round_number=0)]}


def train(state: State, runtime: Runtime[Context]) -> State:
    """Run one RL block under the incumbent harness; its rollouts are the round's evidence."""
    block = runtime.context.crew.train(state["policy_id"], state["harness_id"], runtime.context.strategy.block)
    return {"policy_id": block.checkpoint_id, "evidence_key": block.evidence_key}


def explore(state: State, runtime: Runtime[Context]) -> State:
    """Collect diagnostic traces of the unchanged weights under the incumbent harness."""
    crew, count = runtime.context.crew, runtime.context.strategy.explore_tasks
    key = crew.explore(state["policy_id"], state["harness_id"], count=count, round_number=state["round"])
    return {"evidence_key": key}


def diagnose(state: State, runtime: Runtime[Context]) -> State:
    """Turn the round's traces into findings."""
    return {"findings_key": runtime.context.crew.diagnose(state["evidence_key"], state["harness_id"])}


def propose(state: State, runtime: Runtime[Context]) -> State:
    """Turn findings into one complete candidate; rewritten demonstrations are the teacher's."""
    proposed = runtime.context.crew.propose(
        state["harness_id"], state["findings_key"], state.get("trials", []), round_number=state["round"]
    )
    return {"proposal_key": proposed.key, "candidate_id": proposed.candidate_id}


def gate(state: State, runtime: Runtime[Context]) -> State:
    """Check the candidate, measure it and the incumbent at the new weights, and decide."""
    judged = runtime.context.crew.judge(state["policy_id"], state["harness_id"], state.get("candidate_id", ""))
    return {"decision_key": judged.key, "decision": judged.outcome}


def commit(state: State, runtime: Runtime[Context]) -> State:
    """Store harness, pair and decision in one transaction; the weights are always kept."""
    crew, round_number = runtime.context.crew, state["round"]
    committed = crew.commit(state["policy_id"], state["pair_id"], state["decision_key"], round_number=round_number)
    update: State = {
        "harness_id": committed.harness_id,
        "pair_id": committed.pair_id,
        "pairs": [_pair(state, committed, round_number=round_number + 1)],
        "round": round_number + 1,
        "stop_reason": crew.exhausted(state.get("spent")),
    }
    if proposal_key := state.get("proposal_key"):
        trial: Trial = {"round": round_number, "proposal_key": proposal_key, "decision_key": state["decision_key"]}
        update |= {"trials": [trial], "proposal_key": "", "candidate_id": ""}
    return update


def adopt(state: State, runtime: Runtime[Context]) -> State:
    """Between the two phases of sia: go on with the best harness found, and start training."""
    best = state["pairs"][runtime.context.crew.select(state["pairs"])]
    return {
        "phase": "weights",
        "round": 0,
        "policy_id": best["checkpoint_id"],
        "harness_id": best["harness_id"],
        "pair_id": best["pair_id"],
    }


def select(state: State, runtime: Runtime[Context]) -> State:
    """Choose the pair with the best val score."""
    return {
        "selected": runtime.context.crew.select(state["pairs"]),
        "stop_reason": state.get("stop_reason") or "all rounds finished",
    }


def report(state: State, runtime: Runtime[Context]) -> State:
    """Read test: replicates of the selected pair, and of the first pair for comparison."""
    first, final = state["pairs"][0], state["pairs"][state["selected"]]
    facts = {
        "condition": runtime.context.strategy.condition,
        "rounds": state["round"],
        "stop_reason": state["stop_reason"],
    }
    return {"report_key": runtime.context.crew.report(first, final, facts=facts)}


def after_baseline(state: State, runtime: Runtime[Context]) -> Literal["train", "explore", "select"]:
    """Static stops here; the others enter their loop."""
    if runtime.context.strategy.condition == "static":
        return "select"
    return _work(state)


def after_train(state: State) -> Literal["diagnose", "gate"]:
    """Without proposals the block is only measured."""
    return "gate" if state["phase"] == "weights" else "diagnose"


def after_commit(state: State, runtime: Runtime[Context]) -> Literal["train", "explore", "adopt", "select"]:
    """Another round, the second phase of sia, or the end."""
    if state.get("stop_reason"):
        return "select"
    if state["round"] < runtime.context.strategy.rounds:
        return _work(state)
    is_halfway = runtime.context.strategy.condition == "sia" and state["phase"] == "harness"
    return "adopt" if is_halfway else "select"


def _work(state: State) -> Literal["train", "explore"]:
    return "explore" if state["phase"] == "harness" else "train"


def _pair(state: State, deployed: Committed, *, round_number: int) -> PairScore:
    return {
        "pair_id": deployed.pair_id,
        "checkpoint_id": state["policy_id"],
        "harness_id": deployed.harness_id,
        "val_score": deployed.score,
        "phase": state["phase"],
        "round": round_number,
    }


def build(config: RunConfig) -> StateGraph[State, Context, Any, Any]:
    """The graph, not yet compiled; conditions differ by routers alone."""
    graph: StateGraph[State, Context, Any, Any] = StateGraph(State, context_schema=Context)
    for node in (seed, baseline, train, explore, diagnose, propose, gate, commit, adopt, select, report):
        graph.add_node(node.__name__, recorded(node))
    graph.add_edge(START, "seed")
    graph.add_edge("seed", "baseline")
    graph.add_conditional_edges("baseline", after_baseline)
    graph.add_conditional_edges("train", after_train)
    graph.add_edge("explore", "diagnose")
    graph.add_edge("diagnose", "propose")
    graph.add_edge("propose", "gate")
    graph.add_edge("gate", "commit")
    graph.add_conditional_edges("commit", after_commit)
    graph.add_edge("adopt", "train")
    graph.add_edge("select", "report")
    graph.add_edge("report", END)
    return graph
