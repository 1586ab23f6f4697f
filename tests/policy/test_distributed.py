"""Several training processes: what they share, and two real ones on CPU against one."""

from __future__ import annotations

from pathlib import Path

import block_script
import letters_plugin
import pytest
import torch
from letters_plugin import make_job
from scripted_engine import DictLedger, ScriptedEngine

from harness.errors import UserError
from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.checkpoint import load_checkpoint
from policy.config_executor import AccelerateConfig, InProcessConfig
from policy.distributed import SharedEngine, SharedLedger
from policy.errors import NonFiniteTraining, TrainingError
from policy.executor import make_executor
from policy.mini_batch import pass_size
from policy.process import World, check_sharding, sharding, whole_groups

CONFIG = block_script.CONFIG.model_copy(update={"micro_batch_size": 2})
ACCELERATE = Path(__file__).parents[2] / "configs" / "accelerate"


@pytest.fixture(scope="module", autouse=True)
def plugin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin")
    letters_plugin.install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return block_script.policy_config(tmp_path_factory.mktemp("base"), "full")


def launch(processes: int, config_file: str = "") -> AccelerateConfig:
    return AccelerateConfig(type="accelerate", num_processes=processes, config_file=config_file, tries=1)


def test_two_processes_have_the_losses_and_weights_of_one(tmp_path, policy):
    one = make_executor(InProcessConfig(type="in_process")).run(make_job(tmp_path / "one", policy, CONFIG))
    shared, steps = policy.model_copy(update={"executor": launch(2)}), []
    with make_executor(launch(2)) as executor:
        two = executor.run(make_job(tmp_path / "two", shared, CONFIG), steps.append)
    assert [trace.completion for trace in two.traces] == [trace.completion for trace in one.traces]
    assert [step.step for step in steps] == [0, 1]
    for mine, theirs in zip(one.steps, two.steps, strict=True):
        # sums of floats in another order: equal to 1e-6 of the largest term, which is of order 1
        assert theirs.losses == pytest.approx(mine.losses, abs=1e-6)
        assert theirs.grad_norms == pytest.approx(mine.grad_norms, rel=1e-5)
        assert theirs.trained_tokens == mine.trained_tokens and theirs.entropy == pytest.approx(mine.entropy, rel=1e-6)
    before = load_checkpoint(one.checkpoint).weights
    after = load_checkpoint(two.checkpoint).weights
    for name, tensor in before.items():
        assert torch.linalg.norm(after[name] - tensor) <= 1e-6 * torch.linalg.norm(tensor), name


@pytest.mark.slow
def test_the_failure_of_the_lead_ends_all_processes_and_arrives_as_itself(tmp_path, policy):
    shared = policy.model_copy(update={"executor": launch(2)})
    with make_executor(launch(2)) as executor:
        with pytest.raises(NonFiniteTraining, match="reward nan"):
            executor.run(make_job(tmp_path, shared, CONFIG, fault="nan"))


def test_the_number_of_processes_is_part_of_a_blocks_identity_and_other_executors_are_not(tmp_path, policy):
    keys = {
        name: make_job(tmp_path, policy.model_copy(update={"executor": executor}), CONFIG).key
        for name, executor in (
            ("child", policy.executor),
            ("here", InProcessConfig(type="in_process")),
            ("two", launch(2)),
            ("four", launch(4)),
        )
    }
    assert keys["child"] == keys["here"] and len(set(keys.values())) == 3


def test_an_update_that_cannot_be_shared_evenly_is_refused():
    # 4 prompts x 4 rollouts in 2 updates: 8 samples each
    assert pass_size(CONFIG, 2) == 2
    assert pass_size(CONFIG.model_copy(update={"micro_batch_size": 0}), 2) == 4
    with pytest.raises(TrainingError, match="8 samples, which 3 processes cannot share in passes of 2.*multiple of 6"):
        pass_size(CONFIG, 3)


class Loop(World):
    """A world of two whose messages are handed over in one process: what one said, the other hears."""

    def __init__(self, rank: int, wire: list) -> None:
        super().__init__(rank, 2)
        object.__setattr__(self, "wire", wire)

    def share(self, value=None):
        if self.is_lead:
            self.wire.append(value)
            return value
        return self.wire.pop(0)


def test_what_fails_in_the_lead_is_raised_in_the_others_too():
    wire: list = []
    with pytest.raises(OSError, match="disk full"):
        SharedLedger(Loop(0, wire), FullLedger()).record("k", kind="block", result=1)
    with pytest.raises(TrainingError, match="leading training process failed; got OSError: disk full"):
        SharedLedger(Loop(1, wire), DictLedger()).record("k", kind="block", result=1)


class FullLedger(DictLedger):
    def record(self, key, *, kind, result):
        raise OSError("disk full")


def test_the_others_find_what_the_leads_ledger_holds():
    wire, own = [], DictLedger()
    own.record("k", kind="block", result={"losses": [0.1]})
    assert SharedLedger(Loop(0, wire), own).find("k") == {"losses": [0.1]}
    assert SharedLedger(Loop(1, wire), DictLedger()).find("k") == {"losses": [0.1]}


def test_the_rollouts_of_a_prompt_stay_in_one_process():
    assert whole_groups(["a", "a", "b", "a"]) == [[0, 1], [2], [3]]


def test_alone_a_shared_engine_is_its_engine():
    engine = ScriptedEngine(lambda user, index: f"{user} {index}")
    prompts = [Prompt(messages=(Message(role="user", content=text),)) for text in ("a", "a", "b")]
    made = SharedEngine(World(), engine).generate(prompts, Sampling())
    assert [one.text for one in made] == ["a 0", "a 1", "b 0"]


@pytest.mark.parametrize("name", sorted(path.name for path in ACCELERATE.glob("*.yaml")))
def test_a_shipped_launch_configuration_is_read_by_accelerate(name):
    from accelerate.commands.config.config_args import load_config_from_file

    kinds = {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}
    read = load_config_from_file(str(ACCELERATE / name))
    assert read.distributed_type.value == kinds[Path(name).stem]
    assert (read.fsdp_config.get("fsdp_version") == 2) == (name == "fsdp2.yaml")


@pytest.mark.parametrize(
    ("variables", "cut"),
    [
        ({}, ""),
        ({"ACCELERATE_USE_FSDP": "true"}, "FSDP"),
    ],
)
def test_rollouts_by_a_model_that_is_cut_over_processes_are_refused(monkeypatch, policy, variables, cut):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert sharding() == cut
    if not cut:
        return check_sharding(policy)
    with pytest.raises(UserError, match=f"cannot be rolled out.*{cut}.*vllm_server"):
        check_sharding(policy)


def test_a_missing_launch_configuration_is_named_and_deepspeed_is_refused(tmp_path):
    with pytest.raises(UserError, match="got nowhere.yaml"):
        make_executor(launch(2, "nowhere.yaml"))
    file = tmp_path / "zero.yaml"
    file.write_text("distributed_type: DEEPSPEED\nnum_processes: 2\n")
    with pytest.raises(UserError, match="DeepSpeed is refused.*no checkpoint here can hold"):
        make_executor(launch(2, str(file)))
