from __future__ import annotations

import pytest
import torch
from tiny_policy import tiny_llama

from policy import likelihood
from policy.likelihood import completion_likelihood, token_batch

PROMPTS = [(5, 6, 7, 8, 9), (5, 6, 7, 8, 9), (5, 6, 11), (5, 6, 7, 8, 12, 13, 14)]
COMPLETIONS = [(20, 21, 22), (23,), (24, 25, 26, 27), (28, 29)]


def by_hand(model, prompt, completion, temperature):
    """One sample at a time, no padding, no cache."""
    ids = torch.tensor([prompt + completion])
    logits = model(input_ids=ids).logits[0] / temperature
    scores = torch.log_softmax(logits, dim=-1)
    start = len(prompt)
    chosen = scores[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0]
    entropy = -(scores.exp() * scores).sum(-1)[start - 1 : -1]
    return chosen, entropy


@pytest.mark.parametrize("is_shared", [True, False])
def test_values_and_gradients_equal_one_sample_at_a_time(tokenizer, monkeypatch, is_shared):
    monkeypatch.setattr(likelihood, "has_plain_layers", lambda config: is_shared)
    model = tiny_llama(tokenizer)
    batch = token_batch(PROMPTS, COMPLETIONS, pad_token_id=tokenizer.pad_token_id)
    assert batch.prefix.tolist() == [5, 6] and batch.suffix.shape[0] == 3
    result = completion_likelihood(model, batch, temperature=0.8)
    weights = torch.rand(batch.completion.shape)
    (result.log_probabilities * weights * batch.completion_mask).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        chosen, entropy = by_hand(model, prompt, completion, 0.8)
        count = len(completion)
        assert torch.allclose(result.log_probabilities[row, :count], chosen, atol=1e-5)
        assert torch.allclose(result.entropy[row, :count], entropy, atol=1e-4)
        (chosen * weights[row, :count]).sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, atol=1e-4, rtol=1e-3), name


def test_prompts_of_one_length_and_single_tokens_need_no_padding(tokenizer):
    model = tiny_llama(tokenizer)
    batch = token_batch([(5, 6, 7), (5, 6, 8)], [(20,), (21,)], pad_token_id=tokenizer.pad_token_id)
    result = completion_likelihood(model, batch, temperature=1.0)
    for row, (prompt, completion) in enumerate([((5, 6, 7), (20,)), ((5, 6, 8), (21,))]):
        assert torch.allclose(result.log_probabilities[row], by_hand(model, prompt, completion, 1.0)[0], atol=1e-5)


def test_an_attempt_without_tokens_is_masked_out(tokenizer):
    batch = token_batch([(5, 6), (5, 6)], [(20, 21), ()], pad_token_id=tokenizer.pad_token_id)
    assert batch.completion_mask.tolist() == [[1, 1], [0, 0]]
