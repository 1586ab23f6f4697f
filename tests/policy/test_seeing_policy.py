"""A policy that sees, end to end: drawn metro maps, rollouts, an SFT stage, a merge, an RL step on top of it."""

from __future__ import annotations

import shutil

import pytest
import torch
from scripted_engine import DictLedger
from tiny_suite import LetterSuite
from tiny_vision import save_vision_policy, tiny_qwen3_5, tiny_qwen3_5_text, tiny_qwen3_vl, vision_tokenizer

from evals.suites.metro import MetroSuite
from harness.protocols import Prompt
from harness.records import Sampling, content_id
from harness.render import render
from policy.config import DynamicSampling, HfPolicyConfig, ImageConfig, LoraConfig, RlConfig, SftConfig
from policy.errors import ImageError
from policy.merge import merge_checkpoint, merged_policy_config
from policy.sft.block import SftBlockTrainer, SftRecord, SftRequest
from policy.trainer import BlockRequest, GrpoBlockTrainer
from policy.training_state import load_base, open_engine
from policy.weights import vision_parameters, weights_id

ARCHITECTURES = {"qwen3_vl": tiny_qwen3_vl, "qwen3_5": tiny_qwen3_5}
RL = RlConfig(
    prompts_per_step=2,
    group_size=3,
    max_tokens=8,
    learning_rate=1e-2,
    updates_per_rollout_step=2,
    beta=0.01,
    checkpoint_every=0,
    dynamic_sampling=DynamicSampling(enabled=False),
)
SFT = SftConfig(epochs=1, batch_size=2, learning_rate=1e-2, max_tokens=1024)


class LetterMaps(LetterSuite):
    """Metro maps to look at; the reward of :class:`LetterSuite`, which a random policy can earn."""

    fingerprint = content_id("letter-maps", prefix="suite")


@pytest.fixture(scope="module")
def maps(tmp_path_factory) -> MetroSuite:
    counts = {"train": 4, "val": 1, "test": 1}
    return MetroSuite("pocket", counts=counts, image="only_map", image_folder=tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def tasks(maps):
    return tuple(task.model_copy(update={"gold": "pays"}) for task in maps.tasks(split="train"))


@pytest.fixture(scope="module")
def policies(tmp_path_factory) -> dict[str, HfPolicyConfig]:
    return {name: make_policy(tmp_path_factory.mktemp(name), name) for name in ARCHITECTURES}


@pytest.fixture
def policy(policies) -> HfPolicyConfig:
    return policies["qwen3_vl"]


def make_policy(folder, name: str) -> HfPolicyConfig:
    tokenizer = vision_tokenizer()
    save_vision_policy(folder, ARCHITECTURES[name](tokenizer), tokenizer)
    lora = LoraConfig(r=4, alpha=8, dropout=0.0)
    return HfPolicyConfig(type="hf", model=str(folder), lora=lora, image=ImageConfig(max_pixels=8192), batch_size=6)


def block(maps, tasks, parent=None, first_step=0) -> BlockRequest:
    return BlockRequest(
        parent=parent,
        harness=maps.seed_harness(),
        suite=LetterMaps(),
        tasks=tasks,
        rollout_steps=1,
        first_step=first_step,
        seed=3,
        config=RL,
    )


def records(maps) -> tuple[SftRecord, ...]:
    return tuple(
        SftRecord(
            record_id=task.task_id,
            prompt=render(maps.seed_harness(), task.inputs, task.images),
            completion=maps.solve(task, style="plan"),
        )
        for task in maps.tasks(split="train")
    )


def vision_id(model) -> str:
    found = vision_parameters(model)
    assert found and all(".visual." in name for name in found)
    return weights_id(found)


@pytest.mark.parametrize("name", [*ARCHITECTURES])
def test_sft_then_merge_then_rl_move_the_language_model_alone(policies, name, maps, tasks, tmp_path):
    policy = policies[name]
    base = load_base(policy).model
    stage = SftBlockTrainer(policy, tmp_path).train(SftRequest(records=records(maps), config=SFT), DictLedger())
    # four records in batches of two
    assert len(stage.steps) == 2 and stage.policy_id != stage.base_id
    merged = merged_policy_config(policy, merge_checkpoint(policy, stage.checkpoint, tmp_path))
    result = GrpoBlockTrainer(merged, tmp_path).train(block(maps, tasks), DictLedger())
    assert result.stop == "" and len(result.steps) == 1 and len(result.traces) == 6
    assert result.policy_id != result.base_id
    final = open_engine(merged, result.checkpoint).model
    assert vision_id(final) == vision_id(load_base(merged).model) == vision_id(base)
    before, after = dict(base.named_parameters()), dict(final.named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(".language_model.layers." in name for name in moved)
    assert any("linear_attn" in name for name in moved) == (base.config.model_type == "qwen3_5")


def test_an_rl_step_on_images_is_bit_for_bit_the_same_again(policy, maps, tasks, tmp_path):
    one = GrpoBlockTrainer(policy, tmp_path / "one").train(block(maps, tasks), DictLedger())
    two = GrpoBlockTrainer(policy, tmp_path / "two").train(block(maps, tasks), DictLedger())
    assert one.checkpoint_id == two.checkpoint_id
    assert [trace.completion for trace in one.traces] == [trace.completion for trace in two.traces]


def test_all_weights_trained_means_all_of_the_language_model(policy, maps, tmp_path):
    whole = policy.model_copy(update={"lora": None})
    base = load_base(whole).model
    request = SftRequest(records=records(maps)[:2], config=SFT)
    stage = SftBlockTrainer(whole, tmp_path).train(request, DictLedger())
    final = open_engine(whole, stage.checkpoint)
    assert final.policy_id == stage.policy_id != stage.base_id
    assert vision_id(final.model) == vision_id(base)


def test_an_image_that_changes_before_the_loss_stops_training(policy, maps, tasks, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    copied = []
    for task in tasks:
        path = folder / f"{task.task_id}.png"
        shutil.copyfile(task.images[0].path, path)
        copied.append(task.model_copy(update={"images": (task.images[0].model_copy(update={"path": str(path)}),)}))

    class Vandal(LetterMaps):
        def verify(self, task, completion, **rest):
            (folder / f"{task.task_id}.png").write_bytes(b"something else")
            return super().verify(task, completion, **rest)

    request = block(maps, tuple(copied))
    request = BlockRequest(**{**vars(request), "suite": Vandal()})
    ledger = DictLedger()
    # the rollouts' own pictures are still in memory; a new sitting reads the files again
    trained = GrpoBlockTrainer(policy, tmp_path / "home").train(request, ledger)
    assert trained.stop == ""
    shutil.rmtree(tmp_path / "home")
    with pytest.raises(ImageError, match="cannot open image|has changed"):
        GrpoBlockTrainer(policy, tmp_path / "home").train(request, ledger)


def test_a_policy_without_image_settings_is_shown_text_alone(maps, tmp_path):
    tokenizer = vision_tokenizer()
    model = tiny_qwen3_5(tokenizer)
    folder = save_vision_policy(tmp_path, model, tokenizer)
    engine = open_engine(HfPolicyConfig(type="hf", model=str(folder), lora=None))
    task = maps.tasks(split="train")[0]
    (answer,) = engine.generate([Prompt(messages=render(maps.seed_harness(), task.inputs, task.images))], Sampling())
    assert answer.error == "" and not set(tokenizer.convert_tokens_to_ids(["<|image_pad|>"])) & {
        *answer.prompt_token_ids
    }


def test_the_hybrid_text_model_trains_and_goes_on_bit_for_bit(maps, tmp_path):
    """Gated delta-rule layers, the published architecture's: two steps at once equal one, a checkpoint, one."""
    tokenizer = vision_tokenizer()
    model = tiny_qwen3_5_text(tokenizer)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    policy = HfPolicyConfig(type="hf", model=str(tmp_path / "base"), lora=LoraConfig(r=4, alpha=8), batch_size=6)
    text = MetroSuite("pocket", counts={"train": 4, "val": 1, "test": 1})
    tasks = tuple(task.model_copy(update={"gold": "pays"}) for task in text.tasks(split="train"))
    whole = BlockRequest(**{**vars(block(maps, tasks)), "rollout_steps": 2})
    at_once = GrpoBlockTrainer(policy, tmp_path / "once").train(whole, DictLedger())
    first = GrpoBlockTrainer(policy, tmp_path / "twice").train(block(maps, tasks), DictLedger())
    rest = block(maps, tasks, parent=first.checkpoint, first_step=1)
    second = GrpoBlockTrainer(policy, tmp_path / "twice").train(rest, DictLedger())
    assert first.policy_id != at_once.policy_id == second.policy_id
