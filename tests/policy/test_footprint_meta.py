"""Counts on the meta device, held against models and files that are really there."""

import json

import pytest
from safetensors import safe_open
from tiny_policy import tiny_llama, tiny_tokenizer

from policy.checkpoint import OPTIMIZER, WEIGHTS
from policy.config import LoraConfig, PocketPolicyConfig, RlConfig
from policy.errors import PolicyLoadError
from policy.footprint import training_bytes
from policy.footprint_meta import adapter_parameters, measure_architecture
from policy.load import load_policy, pocket_folder
from policy.schedule import rl_schedule
from policy.training_state import open_state
from policy.weights import attach_lora, trained_parameters


def test_the_pocket_policys_count_is_that_of_its_weights_and_costs_no_memory():
    size = measure_architecture(pocket_folder(), None)
    model = load_policy("pocket").model
    assert size.parameters == size.trainable == sum(parameter.numel() for parameter in model.parameters())
    assert (size.vision, size.layers, size.vocabulary) == (0, 4, model.config.vocab_size)
    # tied: the head's matrix is the embedding, and is multiplied with every token; the norms are no matrices
    norms = sum(parameter.numel() for name, parameter in model.named_parameters() if "norm" in name)
    assert size.matrix == size.parameters - norms


def test_planned_bytes_are_those_of_a_real_checkpoint(tmp_path):
    config = RlConfig()
    state = open_state(PocketPolicyConfig(), config, None, schedule=rl_schedule(config), seed=0, stage="rl")
    for parameter in state.parameters.values():
        parameter.grad = parameter.detach() * 0
    state.optimizer.step()
    saved = state.save(tmp_path, state.progress)
    size = measure_architecture(pocket_folder(), None)
    weights, _, gradients, moments = training_bytes(size, weight_bytes=4, trained_bytes=4, sharding="ddp", gpus=1)
    assert weights == gradients == _tensor_bytes(saved.path / WEIGHTS)
    counters = 4 * len(state.parameters)  # AdamW counts its steps once per tensor, in fp32
    assert moments == _tensor_bytes(saved.path / OPTIMIZER) - counters


def _tensor_bytes(file):
    with safe_open(file, "pt") as opened:
        return sum(opened.get_tensor(name).nbytes for name in opened.keys())  # noqa: SIM118 - not a mapping


def test_smollm2_has_its_known_count():
    assert measure_architecture("smollm2-135m", LoraConfig()).parameters == 134_515_008


# the published totals: 8.95 B in the language model of the 9 B, 4.54 B in all of the 4 B
@pytest.mark.parametrize(
    ("name", "language", "total"),
    [("qwen3.5-9b", 8_953_803_264, 9_409_813_744), ("qwen3.5-4b", 4_205_751_296, 4_539_265_536)],
)
def test_a_vision_language_architecture_is_counted_in_its_parts(name, language, total):
    size = measure_architecture(name, LoraConfig())
    assert (size.language, size.parameters) == (language, total)
    assert size.cached_layers == 8  # every fourth of 32
    assert size.key_value_width == 4 * 256
    # a linear-attention layer: 32 matrices of 128 x 128, and 3 past columns of 2 x 16 x 128 + 32 x 128 channels
    assert size.state_elements == 24 * (32 * 128 * 128 + 3 * 8192)
    blind = measure_architecture(name, LoraConfig(), sees=False)
    assert (blind.parameters, blind.vision, blind.trainable) == (language, 0, size.trainable)


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_adapters_are_counted_as_they_are_attached(tmp_path, targets):
    model = tiny_llama(tiny_tokenizer())
    model.config.to_json_file(tmp_path / "config.json")
    lora = LoraConfig(r=3, targets=targets)
    planned = measure_architecture(tmp_path, lora).trainable
    wrapped = attach_lora(model, lora, seed=0)
    assert planned == sum(parameter.numel() for parameter in trained_parameters(wrapped).values())


def test_an_adapter_is_two_thin_matrices():
    import torch

    layers = {"a.up": torch.nn.Linear(5, 7), "a.down": torch.nn.Linear(7, 5), "lm_head": torch.nn.Linear(5, 99)}
    assert adapter_parameters(layers, LoraConfig(r=2)) == 2 * (5 + 7) + 2 * (7 + 5)
    assert adapter_parameters(layers, LoraConfig(r=2, targets=("up",))) == 24


@pytest.mark.parametrize("content", [None, "{", json.dumps({"model_type": "unheard-of"}), json.dumps({"hidden": 1})])
def test_an_architecture_that_cannot_be_built_is_refused_with_what_would_do(tmp_path, content):
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(PolicyLoadError, match="cannot plan with the architecture.*config.json"):
        measure_architecture(file, None)
