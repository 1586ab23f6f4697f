from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_policy import tiny_llama, tiny_tokenizer

from policy.config import HfPolicyConfig, PocketPolicyConfig
from policy.errors import PolicyLoadError
from policy.load import load_policy, pocket_folder, policy_source


def save(folder, *, template=True):
    tokenizer = tiny_tokenizer()
    if not template:
        tokenizer.chat_template = None
    model = tiny_llama(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def test_half_precision_files_load_as_fp32_with_left_padding(tmp_path):
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    model, tokenizer = load_policy(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert tokenizer.padding_side == "left" and not model.training
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_policy_without_a_chat_template_is_refused(tmp_path):
    save(tmp_path, template=False)
    with pytest.raises(PolicyLoadError, match="no chat template"):
        load_policy(tmp_path)


def test_an_empty_folder_is_refused_by_name(tmp_path):
    with pytest.raises(PolicyLoadError, match=str(tmp_path)):
        load_policy(tmp_path)


def test_configs_name_their_source():
    assert policy_source(HfPolicyConfig(type="hf", model="some/model")) == "some/model"
    assert policy_source(PocketPolicyConfig()) == str(pocket_folder())


@pytest.mark.skipif(not (pocket_folder() / "config.json").exists(), reason="the pocket weights are not built yet")
def test_the_packaged_policy_loads_by_name_and_is_small():
    model, tokenizer = load_policy("pocket")
    assert sum(parameter.numel() for parameter in model.parameters()) <= 2_000_000
    assert sum(path.stat().st_size for path in pocket_folder().iterdir()) <= 8_000_000
    assert tokenizer.decode(tokenizer("any text: Zürich, 北京, ☃", add_special_tokens=False)["input_ids"]) != ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_named_before_anything_is_loaded(tmp_path):
    with pytest.raises(PolicyLoadError, match="policy.device is 'cuda'.*set policy.device to cpu"):
        load_policy(tmp_path / "nothing", device="cuda")
