"""Adapters and frozen parts of models that see, under the real module names of their architectures."""

from __future__ import annotations

import re

import pytest
import torch
from tiny_policy import tiny_llama, tiny_tokenizer
from tiny_vision import tiny_qwen2_5_vl, tiny_qwen3_5, tiny_qwen3_vl, vision_tokenizer

from policy.config import LoraConfig
from policy.errors import TrainingError
from policy.weights import (
    attach_lora,
    check_vision_frozen,
    freeze_vision,
    language_targets,
    trained_parameters,
    vision_parameters,
)

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
RECURRENT = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}
EXPECTED = {
    "qwen3_vl": (tiny_qwen3_vl, ATTENTION | MLP),
    "qwen3_5": (tiny_qwen3_5, ATTENTION | MLP | RECURRENT),
    "qwen2_5_vl": (tiny_qwen2_5_vl, ATTENTION | MLP),
}


def adapted(model) -> set[str]:
    """Full names of the layers that hold an adapter."""
    return {name.split(".lora_")[0].removeprefix("base_model.model.") for name in trained_parameters(model)}


@pytest.mark.parametrize("name", [*EXPECTED])
def test_all_linear_layers_of_the_language_model_but_the_head_get_adapters(name):
    build, expected = EXPECTED[name]
    model = build(vision_tokenizer())
    linear = {
        name
        for name, part in model.named_modules()
        if isinstance(part, torch.nn.Linear) and name.startswith("model.language_model.")
    }
    wrapped = attach_lora(model, LoraConfig(r=2, alpha=4), seed=0)
    assert adapted(wrapped) == linear
    assert {name.rpartition(".")[2] for name in linear} == expected
    check_vision_frozen(wrapped)


def test_named_targets_stay_in_the_language_model_where_the_vision_tower_has_the_same_names():
    model = tiny_qwen2_5_vl(vision_tokenizer())
    assert any(re.search(r"visual\..*gate_proj", name) for name, _ in model.named_modules())
    wrapped = attach_lora(model, LoraConfig(r=2, alpha=4, targets=("gate_proj",)), seed=0)
    assert adapted(wrapped) == {f"model.language_model.layers.{index}.mlp.gate_proj" for index in (0, 1)}


def test_targets_that_are_only_in_the_vision_tower_are_refused():
    model = tiny_qwen3_vl(vision_tokenizer())
    with pytest.raises(TrainingError, match="'qkv'.*no linear layers of the language model"):
        attach_lora(model, LoraConfig(targets=("qkv", "q_proj")), seed=0)


@pytest.mark.parametrize("name", [*EXPECTED])
def test_freezing_takes_tower_and_projector_out_and_nothing_else(name):
    model = EXPECTED[name][0](vision_tokenizer())
    with pytest.raises(TrainingError, match="model.visual"):
        check_vision_frozen(model)
    freeze_vision(model)
    check_vision_frozen(model)
    visual = {name for name, _ in model.named_parameters() if name.startswith("model.visual.")}
    assert set(vision_parameters(model)) == visual and any("merger" in name for name in visual)
    assert set(trained_parameters(model)) == {name for name, _ in model.named_parameters()} - visual


def test_a_plain_language_model_is_left_as_it_is():
    model = tiny_llama(tiny_tokenizer())
    freeze_vision(model)
    assert vision_parameters(model) == {} and language_targets(model) == ""
    assert len(trained_parameters(model)) == len(dict(model.named_parameters()))
