"""Train: one fixed harness, and weights that go through declared stages of SFT and reinforcement learning.

    START -> seed -> baseline --+--> teach -> tune -> merge --+--> measure --+--> select -> report -> END
                                |      (sft stage)            |              |
                                +--> train -------------------+              |
                                ^      (rl stage, one block)                 |
                                +---- next block or next stage <-------------+

    sft stage   the teacher writes traces of train tasks without seeing gold, the verifier audits them, the policy is
                tuned on those it accepts, and the result is merged: the new base, and the reference of a KL term
    rl stage    blocks of rollout steps under the same harness; adapters are fresh after a merge, and go on from block
                to block and from one rl stage to the next, with their optimizer

Cost: an sft stage is one teacher's answer per train task and ``epochs`` passes over the accepted ones; a block is
rollout_steps x prompts x group size attempts and the updates; after each of them the pair is measured on val. Report:
three test evaluations of the best pair and three of the first pair.

What survives a restart: the state below (checkpointed after every node) and, in the stores, every finished piece of
work, so a resumed run ends in the same state and the same weights as an unbroken one.

Source: METHODS §2, SFT and DAPO without the harness stages around them; differs: the traces are written under the
harness that is trained with, not under one that an exploration has edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from graphs.coach import Coach
from graphs.config import RunConfig
from graphs.config_train import RlStageConfig, SftStageConfig, TrainConfig
from graphs.crew import Crew
from graphs.desk import Committed
from graphs.recorder import Recorder, recorded
from graphs.state import PairScore, Spent, add_spent, latest, merge_pairs

Config = TrainConfig


class State(TypedDict, total=False):
    """Ids, counters and decisions; everything large is in the stores."""

    stage: Annotated[int, latest]
    """Index of the stage that is at work, or comes next."""
    block: Annotated[int, latest]
    """Finished blocks of this stage."""
    round: Annotated[int, latest]
    """Finished pieces of work, each measured on val: SFT stages and RL blocks."""
    policy_id: Annotated[str, latest]
    """Checkpoint id of the current weights (``checkpoint_id`` is a reserved word of LangGraph)."""
    harness_id: Annotated[str, latest]
    """The harness, the same from beginning to end."""
    traces_key: Annotated[str, latest]
    """Ledger key of the stage's audited traces."""
    evidence_key: Annotated[str, latest]
    """Ledger key of the block's own traces."""
    pair_id: Annotated[str, latest]
    """The pair measured last."""
    pairs: Annotated[list[PairScore], merge_pairs]
    """Every measured pair with its val score, in order."""
    spent: Annotated[Spent, add_spent]
    """Tokens, money and evaluations so far."""
    stop_reason: Annotated[str, latest]
    """Why the stages ended; empty while they go on."""
    selected: Annotated[int, latest]
    """Index in ``pairs`` of the pair that the selector chose."""
    report_key: Annotated[str, latest]
    """Ledger key of the test report."""


@dataclass(frozen=True)
class Context:
    """Collaborators, injected by :mod:`graphs.assembly`."""

    config: RunConfig
    crew: Crew
    """Roles, RL blocks and stores behind one door, with the work ledger."""
    coach: Coach
    """Audited traces, SFT and merging."""
    recorder: Recorder
    """Writes one step per executed node."""

    @property
    def strategy(self) -> TrainConfig:
        """The graph's own settings."""
        strategy = self.config.strategy
        assert isinstance(strategy, TrainConfig), f"this graph is for strategy.type=train, got {strategy.type}"
        return strategy

    def stage(self, state: State) -> SftStageConfig | RlStageConfig:
        """The stage that is at work."""
        return self.strategy.stages[state["stage"]]


def seed(state: State, runtime: Runtime[Context]) -> State:
    """Take the suite's seed harness, add the teacher's verified demonstrations, name the first weights."""
    crew = runtime.context.crew
    harness_id = crew.write_demonstrations(runtime.context.strategy.seed_demonstrations)
    return {"stage": 0, "block": 0, "round": 0, "policy_id": crew.base_checkpoint(), "harness_id": harness_id}


def baseline(state: State, runtime: Runtime[Context]) -> State:
    """Measure the untrained pair on val."""
    first = runtime.context.crew.deploy(state["policy_id"], state["harness_id"])
    return {"pair_id": first.pair_id, "pairs": [_pair(state, first, "base", round_number=0)]}


def teach(state: State, runtime: Runtime[Context]) -> State:
    """Let the teacher write traces of train tasks and keep those that the verifier accepts."""
    stage = runtime.context.stage(state)
    assert isinstance(stage, SftStageConfig)
    return {"traces_key": runtime.context.coach.teach(state["harness_id"], stage)}


def tune(state: State, runtime: Runtime[Context]) -> State:
    """Fine-tune the weights on the audited traces."""
    stage = runtime.context.stage(state)
    assert isinstance(stage, SftStageConfig)
    tuned = runtime.context.coach.tune(state["policy_id"], state["harness_id"], state["traces_key"], stage)
    return {"policy_id": tuned}


def merge(state: State, runtime: Runtime[Context]) -> State:
    """Make the tuned weights the new base: what follows trains fresh adapters on it and is compared with it."""
    return {"policy_id": runtime.context.coach.merge(state["policy_id"])}


def train(state: State, runtime: Runtime[Context]) -> State:
    """Run one RL block."""
    stage = runtime.context.stage(state)
    assert isinstance(stage, RlStageConfig)
    plan = stage.plan(state["block"])
    block = runtime.context.crew.train(state["policy_id"], state["harness_id"], plan)
    return {"policy_id": block.checkpoint_id, "evidence_key": block.evidence_key}


def measure(state: State, runtime: Runtime[Context]) -> State:
    """Measure the new weights on val, and count the finished block or stage."""
    crew, stage, done = runtime.context.crew, runtime.context.stage(state), state["round"] + 1
    name = f"stage {state['stage'] + 1} ({stage.type})"
    deployed = crew.deploy(
        state["policy_id"], state["harness_id"], parent_id=state["pair_id"], round_number=done, note=name
    )
    is_last = state["block"] + 1 == len(stage.blocks)
    return {
        "pair_id": deployed.pair_id,
        "pairs": [_pair(state, deployed, name, round_number=done)],
        "round": done,
        "stage": state["stage"] + is_last,
        "block": 0 if is_last else state["block"] + 1,
        "stop_reason": crew.exhausted(state.get("spent")),
    }


def select(state: State, runtime: Runtime[Context]) -> State:
    """Choose the pair with the best val score."""
    return {
        "selected": runtime.context.crew.select(state["pairs"]),
        "stop_reason": state.get("stop_reason") or "all stages finished",
    }


def report(state: State, runtime: Runtime[Context]) -> State:
    """Read test: replicates of the selected pair, and of the untrained pair for comparison."""
    first, final = state["pairs"][0], state["pairs"][state["selected"]]
    facts = {
        "condition": runtime.context.strategy.condition,
        "rounds": state["round"],
        "stop_reason": state["stop_reason"],
    }
    return {"report_key": runtime.context.crew.report(first, final, facts=facts)}


def next_work(state: State, runtime: Runtime[Context]) -> Literal["teach", "train", "select"]:
    """The next block or stage, or the end."""
    stages = runtime.context.strategy.stages
    if state.get("stop_reason") or state["stage"] >= len(stages):
        return "select"
    return "teach" if stages[state["stage"]].type == "sft" else "train"


def _pair(state: State, deployed: Committed, name: str, *, round_number: int) -> PairScore:
    return {
        "pair_id": deployed.pair_id,
        "checkpoint_id": state["policy_id"],
        "harness_id": deployed.harness_id,
        "val_score": deployed.score,
        "phase": name,
        "round": round_number,
    }


def build(config: RunConfig) -> StateGraph[State, Context, Any, Any]:
    """The graph, not yet compiled."""
    graph: StateGraph[State, Context, Any, Any] = StateGraph(State, context_schema=Context)
    for node in (seed, baseline, teach, tune, merge, train, measure, select, report):
        graph.add_node(node.__name__, recorded(node))
    graph.add_edge(START, "seed")
    graph.add_edge("seed", "baseline")
    graph.add_conditional_edges("baseline", next_work)
    graph.add_edge("teach", "tune")
    graph.add_edge("tune", "merge")
    graph.add_edge("merge", "measure")
    graph.add_edge("train", "measure")
    graph.add_conditional_edges("measure", next_work)
    graph.add_edge("select", "report")
    graph.add_edge("report", END)
    return graph
