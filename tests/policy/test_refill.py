"""Refilled places: every prompt is answered once, as plain batches answer it, whatever the order of arrival."""

import pytest
import torch
from tiny_policy import tiny_llama

from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.config import HfPolicyConfig, ImageConfig, TransformersEngineConfig
from policy.engines.refill import RefillingEngine
from policy.engines.rollout_engine import transformers_engine
from policy.engines.transformers_engine import TransformersEngine
from policy.errors import PolicyError


def prompts(groups=12, size=3):
    return [
        Prompt(
            messages=(Message(role="user", content=f"Find the route. {'K01 ' * (group % 7)}to K0{group % 10}"),),
            seed=row,
        )
        for group in range(groups)
        for row in range(size)
    ]


@pytest.mark.parametrize(("places", "temperature"), [(1, 1.0), (4, 0.0), (4, 1.0), (64, 1.0)])
def test_refilled_places_give_the_answers_of_plain_batches(llama, tokenizer, places, temperature):
    # fp32: what neighbours change is far below what decides between two tokens of this model
    sampling = Sampling(temperature=temperature, max_tokens=20, seed=1)
    asked = prompts(4 if places == 1 else 12)
    plain = TransformersEngine(llama, tokenizer, "p", places).generate(asked, sampling)
    made = RefillingEngine(llama, tokenizer, "p", places).generate(asked, sampling)
    assert [one.token_ids for one in made] == [one.token_ids for one in plain]
    for one, expected in zip(made, plain, strict=True):
        assert list(one.log_probabilities) == pytest.approx(list(expected.log_probabilities), abs=1e-4)
    if temperature and places > 1:
        assert len({len(one.token_ids) for one in made}) > 1, "rows that end together would test nothing"


def test_every_row_is_told_once_and_a_long_prompt_stops_no_other(llama, tokenizer):
    asked, seen = prompts(6), []
    asked[4] = Prompt(messages=(Message(role="user", content="K01 " * 600),))
    made = RefillingEngine(llama, tokenizer, "p", 4).generate(asked, Sampling(max_tokens=6), progress=seen.append)
    assert [row for row, one in enumerate(made) if one.error] == [4]
    assert seen == list(range(2, 19))  # the refused row counts as answered before the first


def test_a_prompt_is_prefilled_once_for_its_rollouts(llama, tokenizer):
    widths = []
    handle = llama.register_forward_pre_hook(
        lambda module, arguments, named: widths.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    RefillingEngine(llama, tokenizer, "p", 2).generate(prompts(2, size=6), Sampling(max_tokens=4))
    handle.remove()
    # 12 rows of 2 prompts in 2 places: one pass over the shared start, one over each prompt's rest; else single tokens
    assert len([width for _, width in widths if width > 1]) == 3


def test_broken_weights_fail_the_rows_that_are_left(llama, tokenizer):
    with torch.no_grad():
        llama.model.norm.weight.fill_(float("nan"))
    made = RefillingEngine(llama, tokenizer, "p", 4).generate(prompts(3), Sampling(max_tokens=4))
    assert {one.finish_reason for one in made} == {"error"} and "not finite" in made[0].error


def test_a_model_with_a_window_cannot_be_refilled(tokenizer):
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8,
    )  # fmt: skip
    with pytest.raises(PolicyError, match="refill cannot serve MistralForCausalLM"):
        RefillingEngine(MistralForCausalLM(config), tokenizer, "p", 4)


def test_the_configuration_chooses_the_engine(tokenizer):
    engine = TransformersEngineConfig(refill=True)
    policy = HfPolicyConfig(type="hf", model="tiny", engine=engine)
    assert isinstance(transformers_engine(policy, tiny_llama(tokenizer), tokenizer, "p", None), RefillingEngine)
    with pytest.raises(ValueError, match="image is set"):
        HfPolicyConfig(type="hf", model="tiny", engine=engine, image=ImageConfig())
