from __future__ import annotations

import math

import pytest
import torch

from policy.loss import clipped_surrogate, k3_divergence, sequence_mean, sequence_sum, token_mean, token_sum


def surrogate(ratio: float, advantage: float, **options: float) -> tuple[float, bool]:
    result = clipped_surrogate(torch.tensor([[ratio]]), torch.tensor([[advantage]]), **options)
    return result.loss.item(), bool(result.is_clipped.item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        (1.1, 2.0, -2.2, False),  # inside the clip: -1.1 * 2
        (1.5, 2.0, -2.4, True),  # min(3.0, 1.2 * 2) = 2.4
        (0.5, 2.0, -1.0, False),  # min(1.0, 0.8 * 2) = 1.0: a fall in a good token is never clipped
        (0.5, -2.0, 1.6, True),  # min(-1.0, 0.8 * -2) = -1.6
        (1.5, -2.0, 3.0, False),  # min(-3.0, -2.4) = -3.0
        (5.0, -2.0, 10.0, False),  # unbounded without the dual clip
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, is_clipped):
    got, clipped = surrogate(ratio, advantage)
    assert got == pytest.approx(loss, abs=1e-6) and clipped is is_clipped


def test_dual_clip_bounds_bad_tokens_only():
    # c = 3: for A = -2 the objective is at least -6
    assert surrogate(5.0, -2.0, dual_clip=3.0) == (pytest.approx(6.0), True)
    assert surrogate(2.0, -2.0, dual_clip=3.0) == (pytest.approx(4.0), False)
    assert surrogate(5.0, 2.0, dual_clip=3.0) == (pytest.approx(-2.4), True)


def test_asymmetric_clip_and_no_gradient_where_clipped():
    ratio = torch.tensor([[1.25, 1.4]], requires_grad=True)
    result = clipped_surrogate(ratio, torch.tensor([[1.0]]), clip_high=0.28)
    result.loss.sum().backward()
    # 1.25 < 1.28 passes with gradient -1; 1.4 is clipped to 1.28
    assert ratio.grad is not None and ratio.grad.tolist() == [[-1.0, 0.0]]
    assert result.loss.tolist() == [[pytest.approx(-1.25), pytest.approx(-1.28)]]


def test_k3_by_hand():
    # d = ln(0.5) - ln(0.25) = ln 2: 2 - 0.693147 - 1 = 0.306853; equal: 0; d = -ln 2: 0.5 + 0.693147 - 1 = 0.193147
    policy = torch.log(torch.tensor([0.25, 0.4, 0.5]))
    reference = torch.log(torch.tensor([0.5, 0.4, 0.25]))
    assert k3_divergence(policy, reference).tolist() == pytest.approx([0.306853, 0.0, 0.193147], abs=1e-5)


VALUES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])


def test_token_mean_and_sequence_mean_weigh_lengths_differently():
    # tokens: (1 + 2 + 3 + 10) / 4 = 4; sequences: (2 + 10) / 2 = 6
    assert token_mean(VALUES, MASK).item() == pytest.approx(4.0)
    assert sequence_mean(VALUES, MASK).item() == pytest.approx(6.0)


def test_parts_of_a_mini_batch_add_up_to_its_mean():
    parts = [token_sum(VALUES[i : i + 1], MASK[i : i + 1], tokens=4) for i in range(2)]
    assert sum(part.item() for part in parts) == pytest.approx(4.0)
    parts = [sequence_sum(VALUES[i : i + 1], MASK[i : i + 1], samples=2) for i in range(2)]
    assert sum(part.item() for part in parts) == pytest.approx(6.0)


def test_a_sample_out_of_the_loss_changes_neither_mean():
    values = torch.cat([VALUES, torch.tensor([[50.0, 50.0, 50.0]])])
    mask = torch.cat([MASK, torch.zeros(1, 3, dtype=MASK.dtype)])
    assert token_mean(values, mask).item() == pytest.approx(4.0)
    assert sequence_mean(values, mask).item() == pytest.approx(6.0)
    assert not math.isnan(sequence_mean(values, mask).item())
