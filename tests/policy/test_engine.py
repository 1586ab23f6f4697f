from __future__ import annotations

import math

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.engines.transformers_engine import TransformersEngine

SYSTEM = "Find the shortest route on the map and answer as asked. "


def prompt(text: str, seed: int = 0) -> Prompt:
    return Prompt(messages=(Message(role="system", content=SYSTEM), Message(role="user", content=text)), seed=seed)


PROMPTS = [
    prompt("K01 to K03"),
    prompt("a much longer question about K02 and K03, please"),
    prompt("?"),
    prompt("K01 to K03"),
    prompt("K02 to K01 on Red+"),
]


def reference_greedy(model, tokenizer, one: Prompt, max_tokens: int) -> list[int]:
    text = tokenizer.apply_chat_template(
        [m.model_dump() for m in one.messages], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("is_prefix_shared", [True, False])
def test_greedy_equals_model_generate(llama, tokenizer, batch_size, is_prefix_shared):
    engine = TransformersEngine(llama, tokenizer, "policy-x", batch_size, is_prefix_shared=is_prefix_shared)
    got = engine.generate(PROMPTS, Sampling(temperature=0, max_tokens=24))
    for one, answer in zip(PROMPTS, got, strict=True):
        assert list(answer.token_ids) == reference_greedy(llama, tokenizer, one, 24)
        assert answer.log_probabilities == (0.0,) * len(answer.token_ids)
        assert answer.usage.completion_tokens == len(answer.token_ids)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_sliding_window_model_is_decoded_whole(tokenizer, batch_size):
    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            sliding_window=16,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()
    engine = TransformersEngine(model, tokenizer, "p", batch_size)
    assert not engine.is_prefix_shared, "keys outside the window are gone; a prefix cannot be shared"
    got = engine.generate(PROMPTS, Sampling(temperature=0, max_tokens=24))
    for one, answer in zip(PROMPTS, got, strict=True):
        assert list(answer.token_ids) == reference_greedy(model, tokenizer, one, 24)


def test_a_sample_depends_on_its_row_not_on_order_or_batch(llama, tokenizer):
    sampling = Sampling(temperature=1.0, max_tokens=20, seed=3)
    prompts = [prompt(text, seed) for text in ("K01", "K02 to K03 and back", "yes") for seed in range(4)]
    base = TransformersEngine(llama, tokenizer, "p", 12).generate(prompts, sampling)
    turned = TransformersEngine(llama, tokenizer, "p", 5).generate(prompts[::-1], sampling)[::-1]
    assert [a.token_ids for a in base] == [b.token_ids for b in turned]
    assert len({a.token_ids for a in base}) == 12, "rows with different seeds must differ"
    again = TransformersEngine(llama, tokenizer, "p", 12).generate(prompts, sampling.model_copy(update={"seed": 4}))
    assert [a.token_ids for a in base] != [b.token_ids for b in again]


def test_log_probabilities_are_the_models_own_at_the_sampling_temperature(llama, tokenizer):
    engine = TransformersEngine(llama, tokenizer, "p", 4)
    answers = engine.generate([prompt("K01", s) for s in range(4)], Sampling(temperature=0.7, max_tokens=16))
    for answer in answers:
        ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
        with torch.no_grad():
            logits = llama(input_ids=ids).logits[0] / 0.7
        start = len(answer.prompt_token_ids)
        scores = torch.log_softmax(logits, dim=-1)[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
        assert scores.tolist() == pytest.approx(answer.log_probabilities, abs=1e-4)


def test_the_end_token_is_kept_in_the_ids_and_left_out_of_the_text(llama, tokenizer):
    engine = TransformersEngine(llama, tokenizer, "p", 64)
    answers = engine.generate([prompt("yes", s) for s in range(64)], Sampling(temperature=3.0, max_tokens=200))
    stopped = [a for a in answers if a.finish_reason == "stop"]
    assert stopped and len(stopped) < 64, "the fixture must show both endings"
    for answer in answers:
        ids = list(answer.token_ids)
        if answer.finish_reason == "stop":
            assert ids[-1] == tokenizer.eos_token_id
            assert answer.text == tokenizer.decode(ids[:-1])
        else:
            assert len(ids) == 200 and tokenizer.eos_token_id not in ids


def test_an_overlong_prompt_is_an_error_for_its_row_alone(llama, tokenizer):
    engine = TransformersEngine(llama, tokenizer, "p", 4, max_prompt_tokens=120)
    seen = []
    good, bad = engine.generate([prompt("K01"), prompt("word " * 200)], Sampling(max_tokens=4), progress=seen.append)
    assert good.finish_reason in ("stop", "length") and good.error == ""
    assert bad.finish_reason == "error" and "limit is 120" in bad.error
    assert seen == [2]


def test_broken_weights_are_an_error_never_a_sample(llama, tokenizer):
    with torch.no_grad():
        llama.model.norm.weight.fill_(math.nan)
    for temperature in (0.0, 1.0):
        (answer,) = TransformersEngine(llama, tokenizer, "p").generate(
            [prompt("K01")], Sampling(temperature=temperature, max_tokens=4)
        )
        assert answer.finish_reason == "error" and "not finite" in answer.error


def test_no_prompts_give_no_answers_and_training_mode_is_restored(llama, tokenizer):
    engine = TransformersEngine(llama, tokenizer, "p")
    assert engine.generate([], Sampling()) == []
    llama.train()
    engine.generate([prompt("K01")], Sampling(max_tokens=2))
    assert llama.training
