from __future__ import annotations

import math

import pytest
import torch

from harness.protocols import Prompt
from harness.records import Message, Sampling
from policy.engines.sampler import pick, row_key, row_uniforms

# probabilities 0.5, 0.3, 0.2; the cumulative is 0.5, 0.8, 1.0
LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))


@pytest.mark.parametrize(("u", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.999, 2)])
def test_pick_inverts_the_cumulative(u, token):
    picked = pick(LOGITS, torch.tensor([u], dtype=torch.float64), temperature=1.0, top_p=1.0)
    assert picked.tokens.tolist() == [token]
    assert picked.log_probabilities.tolist() == pytest.approx([math.log([0.5, 0.3, 0.2][token])], abs=1e-6)


def test_a_token_of_probability_zero_is_never_picked():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for u in (0.0, 1 - 2**-53):
        assert pick(logits, torch.tensor([u], dtype=torch.float64), temperature=1.0, top_p=1.0).tokens.tolist() == [1]


def test_the_nucleus_is_renormalised():
    # top_p 0.6 keeps 0.5 and 0.3 (0.5 < 0.6 <= 0.8); of 0.8 they are 0.625 and 0.375
    for u, token, share in ((0.62, 0, 0.625), (0.63, 1, 0.375), (0.999, 1, 0.375)):
        picked = pick(LOGITS, torch.tensor([u], dtype=torch.float64), temperature=1.0, top_p=0.6)
        assert picked.tokens.tolist() == [token]
        assert picked.log_probabilities.tolist() == pytest.approx([math.log(share)], abs=1e-6)


def test_temperature_sharpens():
    # at T = 0.5 probabilities are proportional to 0.25, 0.09, 0.04: 0.25 / 0.38 = 0.6579
    picked = pick(LOGITS, torch.tensor([0.65], dtype=torch.float64), temperature=0.5, top_p=1.0)
    assert picked.log_probabilities.tolist() == pytest.approx([math.log(0.25 / 0.38)], abs=1e-5)


def test_frequencies_follow_the_distribution():
    uniforms = row_uniforms([7], 20_000)[0]
    picked = pick(LOGITS.expand(20_000, 3), uniforms, temperature=1.0, top_p=1.0)
    # standard error of a share at n = 20,000 is at most 0.0036
    shares = torch.bincount(picked.tokens, minlength=3) / 20_000
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.015)


def test_the_stream_depends_on_both_seeds_and_the_task_and_not_on_the_harness():
    def key(seed: int, row: int, task: str, system: str = "s") -> int:
        messages = (Message(role="system", content=system), Message(role="user", content=task))
        return row_key(Sampling(seed=seed), Prompt(messages=messages, seed=row))

    assert len({key(0, 0, "t"), key(1, 0, "t"), key(0, 1, "t"), key(0, 0, "u")}) == 4
    assert key(0, 0, "t", "one harness") == key(0, 0, "t", "another harness")
