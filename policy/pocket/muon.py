"""Muon in fp32 for weight matrices on CPUs (the library's version works in bf16, slow there).

Source: Muon (Jordan et al. 2024): momentum, Nesterov, Newton-Schulz orthogonalisation; the update
scale 0.2·sqrt(max(rows, columns)) follows Moonlight (Liu et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: torch.Tensor, *, iterations: int = 5) -> torch.Tensor:
    """Return the nearest semi-orthogonal matrix, approximately.

    Args:
        matrix: (rows, columns), any scale.
        iterations: Newton-Schulz iterations.
    """
    first, second, third = _NEWTON_SCHULZ
    is_tall = matrix.shape[0] > matrix.shape[1]
    result = matrix.T if is_tall else matrix
    result = result / (result.norm() + 1e-7)
    for _ in range(iterations):
        gram = result @ result.T
        result = first * result + (second * gram + third * gram @ gram) @ result
    orthogonal: torch.Tensor = result.T if is_tall else result
    return orthogonal


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz; for two-dimensional parameters only."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Apply one update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.mul_(group["momentum"]).add_(parameter.grad)
                update = orthogonalise(parameter.grad.add(buffer, alpha=group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * 0.2 * max(parameter.shape) ** 0.5)
