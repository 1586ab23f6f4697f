"""The order of nodes and the bookkeeping of stages, with a crew and a coach whose answers are written down here."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from graphs.config import RunConfig
from graphs.events import ignore
from graphs.recorder import Recorder
from graphs.train import Context, build
from memory.store import Store


@dataclass
class ScriptedSchool:
    """Crew and coach in one; the val score of every checkpoint is written down."""

    scores: dict[str, float]
    limit_after: int = 99
    called: list[str] = field(default_factory=list)
    deployed: list[tuple[str, str, str, int]] = field(default_factory=list)
    reported: tuple = ()

    def write_demonstrations(self, count):
        self.called.append(f"demonstrations {count}")
        return "h0"

    def base_checkpoint(self):
        return "c0"

    def deploy(self, checkpoint_id, harness_id, *, parent_id="", round_number=0, note="first pair"):
        self.deployed.append((checkpoint_id, parent_id, note, round_number))
        pair_id = f"{checkpoint_id}/{harness_id}"
        return SimpleNamespace(pair_id=pair_id, harness_id=harness_id, score=self.scores[checkpoint_id])

    def train(self, checkpoint_id, harness_id, plan):
        self.called.append(f"train {checkpoint_id} for {plan.rollout_steps} at {plan.rl.learning_rate}")
        return SimpleNamespace(checkpoint_id=f"c{int(checkpoint_id[1:]) + 1}", evidence_key="evidence")

    def teach(self, harness_id, stage):
        self.called.append(f"teach {stage.style}")
        return f"traces in {stage.style}"

    def tune(self, checkpoint_id, harness_id, traces_key, stage):
        self.called.append(f"tune {checkpoint_id} on {traces_key}")
        return f"{checkpoint_id}-tuned"

    def merge(self, checkpoint_id):
        self.called.append(f"merge {checkpoint_id}")
        return f"c{int(checkpoint_id[1]) + 1}"

    def exhausted(self, spent):
        return "budget.max_tokens reached" if len(self.deployed) > self.limit_after else ""

    def select(self, pairs):
        return max(range(len(pairs)), key=lambda index: pairs[index]["val_score"])

    def report(self, first, final, *, facts):
        self.reported = (first["checkpoint_id"], final["checkpoint_id"], facts)
        return "report-1"


SFT = {"type": "sft", "style": "plan"}
RL = {"type": "rl", "rollout_steps": 5, "block_steps": 3, "rl": {"learning_rate": 0.5}}


def _run(tmp_path, stages, scores, **limits):
    strategy = {"type": "train", "stages": stages, "seed_demonstrations": 2}
    config = RunConfig.model_validate({"suite": {"type": "metro"}, "strategy": strategy})
    school = ScriptedSchool({f"c{number}": score for number, score in enumerate(scores)}, **limits)
    with Store.open(tmp_path) as store:
        context = Context(config=config, crew=school, coach=school, recorder=Recorder(store.steps, "run", ignore))
        state = build(config).compile().invoke({}, {"recursion_limit": 200}, context=context)
        return school, state, store.steps.list("run")


def test_an_sft_stage_is_merged_before_blocks_train_on_it_and_every_piece_is_measured(tmp_path):
    school, state, steps = _run(tmp_path, [SFT, RL], [0.1, 0.2, 0.4, 0.3])
    assert school.called == [
        "demonstrations 2",
        "teach plan",
        "tune c0 on traces in plan",
        "merge c0-tuned",
        "train c1 for 3 at 0.5",
        "train c2 for 2 at 0.5",
    ]
    assert school.deployed == [
        ("c0", "", "first pair", 0),
        ("c1", "c0/h0", "stage 1 (sft)", 1),
        ("c2", "c1/h0", "stage 2 (rl)", 2),
        ("c3", "c2/h0", "stage 2 (rl)", 3),
    ]
    assert school.reported == (  # the best-val pair, not the last one
        "c0", "c2", {"condition": "train", "rounds": 3, "stop_reason": "all stages finished"}
    )  # fmt: skip
    assert [step.node for step in steps] == [
        "seed", "baseline", "teach", "tune", "merge", "measure", "train", "measure", "train", "measure", "select",
        "report",
    ]  # fmt: skip
    assert (state["stage"], state["block"], state["round"]) == (2, 0, 3)


def test_a_second_rl_stage_goes_on_from_the_first_without_a_merge(tmp_path):
    other = {"type": "rl", "rollout_steps": 1, "rl": {"learning_rate": 0.25}}
    school, state, _ = _run(tmp_path, [RL | {"block_steps": None}, other], [0.1, 0.2, 0.3])
    assert school.called[1:] == ["train c0 for 5 at 0.5", "train c1 for 1 at 0.25"]
    assert [pair["phase"] for pair in state["pairs"]] == ["base", "stage 1 (rl)", "stage 2 (rl)"]


def test_a_reached_limit_ends_the_stages_after_the_piece_that_reached_it(tmp_path):
    school, state, _ = _run(tmp_path, [SFT, RL], [0.1, 0.2, 0.4, 0.3], limit_after=2)
    assert school.called[-1] == "train c1 for 3 at 0.5"
    assert state["stop_reason"] == "budget.max_tokens reached"
    assert school.reported[1] == "c2"


def test_weights_that_no_stage_improves_are_not_selected(tmp_path):
    school, _, _ = _run(tmp_path, [RL], [0.5, 0.4, 0.3])
    assert school.reported[:2] == ("c0", "c0")
