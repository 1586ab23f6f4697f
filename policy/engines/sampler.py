"""Sampling by inverse CDF on uniforms fixed per row, so a sample never depends on its neighbours."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from policy.engines.row_key import row_key

__all__ = ["Picked", "pick", "row_key", "row_uniforms"]


class Picked(NamedTuple):
    """One token per row and its log-probability under the sampling distribution."""

    tokens: torch.Tensor
    log_probabilities: torch.Tensor


def row_uniforms(keys: list[int], count: int) -> torch.Tensor:
    """Uniforms in [0, 1), (rows, count) float64, each row from its own key."""
    table = np.empty((len(keys), count))
    for row, key in enumerate(keys):
        np.random.Generator(np.random.Philox(key=key)).random(out=table[row])
    return torch.from_numpy(table)


def pick(logits: torch.Tensor, uniforms: torch.Tensor, *, temperature: float, top_p: float) -> Picked:
    """Pick one token per row.

    Args:
        logits: (rows, vocabulary).
        uniforms: (rows,) in [0, 1); unused at temperature 0.
        temperature: 0 takes the most likely token, with log-probability 0.
        top_p: keep the smallest set of tokens whose probability reaches this.
    """
    if temperature == 0:
        tokens = logits.argmax(dim=-1)
        return Picked(tokens, torch.zeros(tokens.shape, dtype=torch.float32, device=logits.device))
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    if top_p < 1:
        probabilities = _nucleus(probabilities, top_p)
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    target = uniforms.to(cumulative.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    chosen = probabilities.gather(-1, tokens)
    return Picked(tokens[:, 0], torch.log(chosen[:, 0] / cumulative[:, -1].float()))


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    ordered, order = probabilities.sort(dim=-1, descending=True)
    is_outside = ordered.cumsum(dim=-1) - ordered >= top_p
    is_outside[:, 0] = False
    return probabilities.masked_fill(torch.zeros_like(is_outside).scatter_(-1, order, is_outside), 0.0)
