"""Muon: the update is close to the nearest semi-orthogonal matrix."""

from __future__ import annotations

import torch

from policy.pocket.muon import Muon, orthogonalise


def test_singular_values_come_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((8, 8), (16, 6), (6, 16)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(*shape)))
        assert values.max() < 1.3
        assert values.min() > 0.3


def test_one_step_moves_by_rate_times_scale() -> None:
    # A gradient of scale c·I: the orthogonalised update is s·I with s near 1, the step lr · 0.2 · sqrt(4) · s.
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    optimizer = Muon([weight], lr=0.1)
    weight.grad = 5 * torch.eye(4)
    optimizer.step()
    step = orthogonalise(torch.eye(4))[0, 0].item()
    assert torch.allclose(weight.detach(), -0.1 * 0.2 * 2 * step * torch.eye(4), atol=1e-5)
