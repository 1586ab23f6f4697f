"""SFT of a policy that sees: a tiny random model of a current architecture, with pictures."""

from __future__ import annotations

import pytest
import torch
from scripted_engine import DictLedger
from tiny_vision import picture, save_vision_policy, tiny_qwen3_5, tiny_qwen3_vl, vision_tokenizer

from harness.records import Message
from policy.checkpoint import load_checkpoint
from policy.config import HfPolicyConfig, ImageConfig, LoraConfig, SftConfig
from policy.errors import TrainingError
from policy.load import load_policy, load_vision
from policy.merge import merge_checkpoint, merged_policy_config, verify_merged
from policy.sft.block import SftBlockTrainer, SftRecord, SftRequest
from policy.sft.tokens import encode_record
from policy.training_state import load_trained, open_engine
from policy.weights import vision_parameters

MADE = {"qwen3_vl": tiny_qwen3_vl, "qwen3_5": tiny_qwen3_5}
CONFIG = SftConfig(
    epochs=2, batch_size=4, learning_rate=1e-2, warmup_ratio=0.0, schedule="constant", checkpoint_every=0
)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Three records with pictures of different sizes and one without."""
    folder = tmp_path_factory.mktemp("pictures")
    pictures = [picture(folder / f"{size}.png", size, 48, "blue") for size in (48, 64, 96)]
    return tuple(
        SftRecord(
            record_id=f"r{index}",
            prompt=(
                Message(role="system", content="Find the route."),
                Message(role="user", content="K01 to K03 " * (index + 1), images=images),
            ),
            completion="K01-K02" + "-K03" * index,
        )
        for index, images in enumerate([(one,) for one in pictures] + [()])
    )


@pytest.fixture(scope="module", params=list(MADE))
def trained(request, tmp_path_factory, tasks):
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp(request.param)
    tokenizer = vision_tokenizer()
    folder = save_vision_policy(home / "base", MADE[request.param](tokenizer), tokenizer)
    policy = HfPolicyConfig(
        type="hf", model=str(folder), lora=LoraConfig(r=4, alpha=8, dropout=0.0), image=ImageConfig(max_pixels=4096)
    )
    return policy, home, SftBlockTrainer(policy, home).train(SftRequest(records=tasks, config=CONFIG), DictLedger())


def test_the_first_loss_is_that_of_the_models_own_forward_pass_on_each_record(trained, tasks):
    policy, _, result = trained
    model, tokenizer = load_policy(policy.model, sees=True)[:2]
    reader, total, counted = load_vision(policy, tokenizer), 0.0, 0
    for record in tasks:
        made = encode_record(tokenizer, record, stop_token_ids=[tokenizer.eos_token_id], reader=reader)
        ids = made.prompt + made.completion
        seen = reader.inputs(made.images)
        more = {**seen, "mm_token_type_ids": torch.tensor([reader.token_types(ids)])} if seen else {}
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), **more).logits[0, :-1].float()
        labels = torch.tensor(ids[1:])
        scores = logits.log_softmax(-1).gather(-1, labels[:, None])[len(made.prompt) - 1 :]
        total, counted = total - float(scores.sum()), counted + len(made.completion)
    # the first update holds all four records, adapters change nothing yet
    assert result.steps[0].loss == pytest.approx(total / counted, rel=1e-4)
    assert result.steps[1].loss < result.steps[0].loss


def test_no_vision_parameter_moves_and_the_language_model_does(trained):
    policy, _, result = trained
    before = load_policy(policy.model, sees=True).model
    after = load_trained(policy, load_checkpoint(result.checkpoint)).model
    frozen = vision_parameters(before)
    assert len(frozen) > 5
    moved = {
        name for name, parameter in before.named_parameters() if not torch.equal(parameter, after.get_parameter(name))
    }
    assert moved and not moved & set(frozen)


def test_a_merged_policy_still_sees(trained, tasks):
    policy, home, result = trained
    merged = merge_checkpoint(policy, result.checkpoint, home)
    assert "preprocessor_config.json" in verify_merged(merged.path).files
    config = merged_policy_config(policy, merged)
    assert config.image == policy.image
    engine = open_engine(config)
    assert engine.policy_id == merged.policy_id
    assert load_vision(config, engine.tokenizer) is not None


def test_records_with_images_are_not_packed(trained, tasks):
    policy, home, _ = trained
    packed = SftRequest(records=tasks, config=CONFIG.model_copy(update={"packing": True}))
    with pytest.raises(TrainingError, match="records with images cannot be packed"):
        SftBlockTrainer(policy, home).train(packed, DictLedger())


def test_recurrent_layers_mix_packed_records_and_are_refused(trained, tasks):
    policy, home, _ = trained
    texts = tuple(tasks[3].model_copy(update={"record_id": name, "completion": name}) for name in ("K01", "K02 K03"))
    packed = SftRequest(records=texts, config=CONFIG.model_copy(update={"packing": True}))
    trainer = SftBlockTrainer(policy, home)
    if "qwen3_5" in str(home):
        with pytest.raises(TrainingError, match="Qwen3_5.*does not keep packed records apart"):
            trainer.train(packed, DictLedger())
    else:
        apart = trainer.train(SftRequest(records=texts, config=CONFIG), DictLedger())
        together = trainer.train(packed, DictLedger())
        assert [step.loss for step in together.steps] == pytest.approx([step.loss for step in apart.steps], rel=1e-3)
