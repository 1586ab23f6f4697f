"""What both trainers take from TRL's loop alike: a loader without data, the end of an update, and silence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from policy.errors import NonFiniteTraining

QUIET: dict[str, Any] = {
    "bf16": False,
    "activation_checkpointing": False,
    "dataloader_pin_memory": False,
    "ddp_find_unused_parameters": False,
    "disable_tqdm": True,
    "logging_strategy": "no",
    "save_strategy": "no",
    "eval_strategy": "no",
}
"""TRL by itself casts, logs, saves and draws nothing: precision is the model's, and the run keeps its own records."""


def placeholder_loader(count: int) -> DataLoader[Any]:
    """``count`` placeholders in one pass: what is trained on is made when it is asked for."""
    return DataLoader(_Placeholders(count), batch_size=1, collate_fn=_same)


class UpdateEnd(TrainerCallback):  # type: ignore[misc]
    """Tells a trainer that an update is made.

    Args:
        finish: takes the learning rate of the update.
    """

    def __init__(self, finish: Callable[[float], None]) -> None:
        self._finish = finish
        self._learning_rate = 0.0

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Read the rate before the schedule moves on."""
        self._learning_rate = kwargs["optimizer"].param_groups[0]["lr"]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the update."""
        self._finish(self._learning_rate)


def check_finite(name: str, value: float) -> None:
    """Stop training before a number that is none reaches the weights.

    Args:
        name: what the value is, for example ``loss of update 3``.
        value: to check.

    Raises:
        NonFiniteTraining: it is NaN or infinite.
    """
    if not math.isfinite(value):
        raise NonFiniteTraining(
            f"{name} is {value}; expected a finite number; "
            "the weights on disk are from before it; lower the learning rate and resume"
        )


class _Placeholders(torch.utils.data.Dataset[int]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


def _same(batch: list[Any]) -> list[Any]:
    return batch
