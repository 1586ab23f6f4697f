"""Blocks of training: go on, be killed, be asked twice; the weights must come out bit for bit the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import block_script
import pytest
import torch
from scripted_engine import DictLedger
from tiny_suite import HARNESS, LetterSuite, make_tasks

from harness.protocols import Prompt
from harness.records import Sampling, Scored
from harness.render import render
from policy.block import block_key
from policy.checkpoint import load_checkpoint
from policy.config import DynamicSampling, LoraConfig
from policy.errors import CheckpointError, NonFiniteTraining, NoSignal, TooManyUnscored, TrainingError
from policy.task_stream import Draw
from policy.trainer import BlockRequest, GrpoBlockTrainer, open_engine

SCRIPT = Path(block_script.__file__)
ROOT = SCRIPT.parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def unbroken(home):
    """Four rollout steps without a break, by kind; trained once."""
    made = {}

    def result(kind: str):
        if kind not in made:
            made[kind] = block_script.train(home, kind, 0, 4, None, DictLedger())
        return made[kind]

    return result


def run_script(home: Path, kind: str, first: int, steps: int, parent: str, kill: str = "-"):
    command = [sys.executable, str(SCRIPT), str(home), kind, str(first), str(steps), parent, kill]
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)


def test_training_changes_the_weights_and_tells_what_it_did(unbroken):
    result = unbroken("full")
    assert [step.step for step in result.steps] == [0, 1, 2, 3]
    assert all(step.trained_groups == 4 and len(step.losses) == 2 for step in result.steps)
    # every fourth task never pays, so some groups were dropped and replaced
    assert sum(step.dropped_groups for step in result.steps) > 0
    assert sum(step.replaced_groups for step in result.steps) > 0
    assert len({step.policy_id for step in result.steps}) == 4, "each step is sampled by the weights before it"
    assert result.policy_id not in {step.policy_id for step in result.steps}
    assert len(result.traces) == sum(step.attempts for step in result.steps)
    assert (result.progress.rollout_steps, result.progress.updates) == (4, 8)
    # warmup over 5 updates to 5e-3: the second update of step 0 runs at 2/5 of it
    assert [step.learning_rate for step in result.steps] == pytest.approx([0.002, 0.004, 0.005, 0.005])


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_two_and_two_steps_in_two_processes_equal_four(home, unbroken, kind):
    half = block_script.train(home, kind, 0, 2, None, DictLedger())
    done = run_script(home, kind, 2, 2, str(half.checkpoint))
    assert done.returncode == 0, done.stderr[-2000:]
    rest = json.loads(done.stdout)
    whole = unbroken(kind)
    assert rest["policy_id"] == whole.policy_id
    assert rest["checkpoint_id"] == whole.checkpoint_id, "optimizer, generators and counters are equal too"
    assert [trace.trace_id for trace in half.traces] + rest["traces"] == [trace.trace_id for trace in whole.traces]


@pytest.mark.parametrize(
    ("kind", "kill"),
    [
        ("full", "record:3"),  # step 1 was sampled, nothing of it is recorded
        ("full", "saved:2"),  # the checkpoint after step 1 is on disk, the ledger does not know it
        ("lora", "record:5"),  # step 2 was sampled, nothing of it is recorded
        ("lora", "saved:4"),  # the final checkpoint is on disk, the block is not recorded
    ],
)
def test_a_killed_block_run_again_gives_the_same_bits(tmp_path, unbroken, kind, kill):
    killed = run_script(tmp_path, kind, 0, 4, "-", kill)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    result = block_script.train(tmp_path, kind, 0, 4, None, block_script.open_ledger(tmp_path))
    whole = unbroken(kind)
    assert result.policy_id == whole.policy_id and result.checkpoint_id == whole.checkpoint_id
    assert [trace.trace_id for trace in result.traces] == [trace.trace_id for trace in whole.traces]
    assert [step.losses for step in result.steps] == [step.losses for step in whole.steps]
    assert list((tmp_path / "blocks").iterdir()) == [], "in-block checkpoints go when the block ends"


def test_a_disk_that_fills_up_at_a_checkpoint_is_a_typed_stop_and_a_later_run_goes_on(tmp_path, unbroken):
    stopped = run_script(tmp_path, "full", 0, 4, "-", "full:3")  # the third checkpoint: two steps are safe
    assert stopped.returncode == 1
    assert "CheckpointError: saving a checkpoint under" in stopped.stderr and "free disk space" in stopped.stderr
    for folder in [path for path in tmp_path.rglob("checkpoint-*") if path.is_dir()]:
        load_checkpoint(folder)  # whole: nothing half-written has a checkpoint's name
    assert list(tmp_path.rglob(".tmp-*")) == []
    result = block_script.train(tmp_path, "full", 0, 4, None, block_script.open_ledger(tmp_path))
    whole = unbroken("full")
    assert result.policy_id == whole.policy_id and result.checkpoint_id == whole.checkpoint_id


def test_a_finished_block_is_not_trained_again(home, monkeypatch):
    ledger = DictLedger()
    first = block_script.train(home, "full", 0, 1, None, ledger)
    monkeypatch.setattr("policy.trainer.open_state", lambda *a, **k: pytest.fail("trained again"))
    again = block_script.train(home, "full", 0, 1, None, ledger)
    assert again == first


def test_a_finished_block_whose_checkpoint_is_torn_is_made_again(home):
    ledger = DictLedger()
    first = block_script.train(home, "full", 0, 1, None, ledger)
    (first.checkpoint / "weights.safetensors").write_bytes(b"torn")
    again = block_script.train(home, "full", 0, 1, None, ledger)
    assert again.checkpoint_id == first.checkpoint_id
    assert load_checkpoint(again.checkpoint).policy_id == first.policy_id


def test_a_checkpoint_can_be_evaluated_and_the_base_too(home, unbroken):
    prompts = [Prompt(messages=render(HARNESS, task.inputs), seed=index) for index, task in enumerate(make_tasks(4))]
    sampling = Sampling(max_tokens=12, seed=1)
    for kind in ("full", "lora"):
        policy, result = block_script.policy_config(home, kind), unbroken(kind)
        base = open_engine(policy, None, threads=1)
        trained = open_engine(policy, result.checkpoint)
        assert trained.policy_id == result.policy_id and base.policy_id == result.base_id
        texts = [answer.text for answer in trained.generate(prompts, sampling)]
        assert texts != [answer.text for answer in base.generate(prompts, sampling)]
        assert texts == [answer.text for answer in trained.generate(prompts, sampling)]


def test_adapters_leave_the_base_alone_and_are_small(home, unbroken):
    saved = load_checkpoint(unbroken("lora").checkpoint)
    assert all("lora_" in name for name in saved.weights)
    assert saved.base_id == unbroken("full").base_id


def request(home: Path, **changes) -> tuple[GrpoBlockTrainer, BlockRequest]:
    fields = {
        "parent": None,
        "harness": HARNESS,
        "suite": LetterSuite(),
        "tasks": make_tasks(),
        "rollout_steps": 1,
        "first_step": 0,
        "seed": 7,
        "config": block_script.CONFIG,
    }
    return GrpoBlockTrainer(block_script.policy_config(home, "full"), home), BlockRequest(**{**fields, **changes})


def test_requests_that_cannot_be_trained_are_refused(home, unbroken):
    trainer, wrong_step = request(home, parent=unbroken("full").checkpoint, first_step=2)
    with pytest.raises(TrainingError, match="starts at rollout step 2, its parent has trained 4"):
        trainer.train(wrong_step, DictLedger())
    with pytest.raises(TrainingError, match="needs 4 different tasks; the pool has 3"):
        trainer.train(request(home, tasks=make_tasks(3))[1], DictLedger())
    val = make_tasks(4)[0].model_copy(update={"split": "val"})
    with pytest.raises(TrainingError, match=r"got tasks of \['val'\]"):
        trainer.train(request(home, tasks=(*make_tasks(4), val))[1], DictLedger())


def test_a_checkpoint_of_another_base_or_other_adapters_is_refused(home, unbroken):
    lora = block_script.policy_config(home, "lora")
    with pytest.raises(CheckpointError, match="lora=None"):
        open_engine(lora, unbroken("full").checkpoint)
    other = lora.model_copy(update={"lora": LoraConfig(r=2)})
    with pytest.raises(CheckpointError, match="make them equal"):
        open_engine(other, unbroken("lora").checkpoint)


class BrokenSuite(LetterSuite):
    """Verifies with whatever the test wants."""

    fingerprint = "suite-broken"

    def __init__(self, verify) -> None:
        self.verify = verify


def test_a_reward_that_is_not_a_number_is_a_typed_failure(home):
    suite = BrokenSuite(lambda *a, **k: Scored(parts={"exact": 0.0}, reward=float("nan")))
    trainer, asked = request(home, suite=suite)
    with pytest.raises(NonFiniteTraining, match="reward nan"):
        trainer.train(asked, DictLedger())


def test_a_verifier_that_raises_is_user_code_that_failed_not_a_zero(home):
    def verify(*args, **kwargs):
        raise KeyError("gold")

    trainer, asked = request(home, suite=BrokenSuite(verify))
    with pytest.raises(TooManyUnscored, match=r"KeyError: 'gold'"):
        trainer.train(asked, DictLedger())


def test_no_signal_at_all_is_a_typed_stop(home):
    suite = BrokenSuite(lambda *a, **k: Scored(parts={"exact": 1.0}, reward=1.0))
    trainer, asked = request(home, suite=suite)
    with pytest.raises(NoSignal, match="with all rewards equal"):
        trainer.train(asked, DictLedger())


def test_signal_that_dries_up_ends_the_block_with_the_weights_it_has(home):
    count = 0

    def verify(task, completion, **kwargs):
        nonlocal count
        count += 1
        return Scored(parts={"exact": 0.0}, reward=float(count % 2) if count <= 16 else 0.0)

    bound = block_script.CONFIG.model_copy(update={"dynamic_sampling": DynamicSampling(max_groups_factor=1.0)})
    trainer, asked = request(home, suite=BrokenSuite(verify), rollout_steps=3, config=bound)
    result = trainer.train(asked, DictLedger())
    assert len(result.steps) == 1 and result.progress.rollout_steps == 1
    assert "rollout step 1: 4 of 4 groups are missing" in result.stop
    assert len(result.traces) == 32, "the attempts without signal are evidence too"


def test_a_later_block_without_signal_keeps_the_weights_and_says_why(home):
    first = block_script.train(home, "full", 0, 1, None, DictLedger(), block_script.CONFIG)
    solved = BrokenSuite(lambda *a, **k: Scored(parts={"exact": 1.0}, reward=1.0))
    bound = block_script.CONFIG.model_copy(update={"dynamic_sampling": DynamicSampling(max_groups_factor=1.0)})
    trainer, asked = request(home, suite=solved, parent=first.checkpoint, first_step=1, config=bound)
    result = trainer.train(asked, DictLedger())
    assert result.steps == () and result.policy_id == first.policy_id
    assert "with all rewards equal" in result.stop and len(result.traces) == 16
    assert result.progress.rollout_steps == 1
    assert result.progress.position > first.progress.position, "the next block draws other tasks"


def test_the_kl_term_sees_the_base_policy(home):
    for kind in ("full", "lora"):
        config = block_script.CONFIG.model_copy(update={"beta": 0.1, "updates_per_rollout_step": 1})
        result = block_script.train(home, kind, 0, 2, None, DictLedger(), config)
        # the first step starts at the base: no divergence but rounding (and, for adapters, their dropout)
        assert result.steps[0].kl < result.steps[1].kl
        if kind == "full":
            assert abs(result.steps[0].kl) < 1e-6


def test_weighted_draws_go_on_where_a_block_left_off(home):
    weighted = {"task_weights": {"t0": 4.0, "t3": 0.25}}
    trainer, whole = request(home, rollout_steps=2, **weighted)
    unbroken = trainer.train(whole, DictLedger())
    half = trainer.train(request(home, **weighted)[1], DictLedger())
    rest = trainer.train(request(home, parent=half.checkpoint, first_step=1, **weighted)[1], DictLedger())
    assert rest.checkpoint_id == unbroken.checkpoint_id
    assert [step.deterministic for step in (*half.steps, *rest.steps)] == [s.deterministic for s in unbroken.steps]
    assert unbroken.checkpoint_id != trainer.train(request(home, rollout_steps=2)[1], DictLedger()).checkpoint_id


class Reversed:
    """An order of a user's own: the pool backwards, for ever."""

    fingerprint = "order-reversed"
    is_with_replacement = False

    def __init__(self, tasks) -> None:
        self._tasks = tasks[::-1]

    def __len__(self) -> int:
        return len(self._tasks)

    def at(self, position: int) -> Draw:
        return Draw(self._tasks[position % len(self._tasks)], importance=0.5)


def test_an_order_of_the_callers_own_decides_the_draws_and_is_in_the_key(home):
    trainer, asked = request(home, order=Reversed(make_tasks()))
    result = trainer.train(asked, DictLedger())
    # t11, t7 and t3 never pay, so others stand in; the first draw is the pool's last four
    first = list(dict.fromkeys(trace.task_id for trace in result.traces))[:4]
    assert first == ["t11", "t10", "t9", "t8"]
    assert block_key(trainer.policy, asked) != block_key(trainer.policy, request(home)[1])
    with pytest.raises(TrainingError, match="give one of them"):
        trainer.train(request(home, order=Reversed(make_tasks()), task_weights={})[1], DictLedger())
    with pytest.raises(TrainingError, match=r"tasks cannot be drawn: task_weights names \['t99'\]"):
        trainer.train(request(home, task_weights={"t99": 1.0})[1], DictLedger())


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
