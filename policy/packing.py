"""Whether a model keeps packed records apart, found out by asking it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from policy.errors import TrainingError
from policy.sft_batch import IGNORED, SftMicroBatch
from policy.sft_tokens import SftTokens

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest difference in nats that two layouts of the same tokens may have by rounding."""


def check_packing(
    model: Any,
    records: Sequence[SftTokens],
    *,
    row_limit: int,
    lay_out: Callable[[list[SftTokens], int], SftMicroBatch],
) -> None:
    """Score two records in one row and each alone; refuse packing where the numbers differ.

    What keeps records apart is the position ids, which start afresh at every record; an attention that reads them
    for the place alone, or a recurrent layer, would mix the records without a word.

    Args:
        model: the policy.
        records: of the stage; its two shortest are tried.
        row_limit: tokens of a packed row.
        lay_out: makes rows of records.

    Raises:
        TrainingError: the policy mixes packed records, or its records have images.
    """
    if any(record.images for record in records):
        raise TrainingError("records with images cannot be packed; set sft.packing to false")
    pair = sorted(records, key=len)[:2]
    if len(pair) < 2 or sum(map(len, pair)) > row_limit:
        return  # no row will ever hold two records
    was_training = model.training
    model.eval()
    with torch.no_grad():
        together = _log_probabilities(model, lay_out(pair, 1))
        apart = torch.cat([_log_probabilities(model, lay_out([one], 1)) for one in pair])
    model.train(was_training)
    gap = float((together - apart).abs().max())
    if not gap <= TOLERANCE.get(model.dtype, 0.1):
        attention = getattr(model.config.get_text_config(), "_attn_implementation", "unknown")
        raise TrainingError(
            f"sft.packing is on and {type(model).__name__} with attention {attention!r} does not keep packed records "
            f"apart: log-probabilities of the same tokens differ by {gap:.3g} nats between a row of two records and a "
            "row each; set sft.packing to false"
        )


def _log_probabilities(model: Any, batch: SftMicroBatch) -> Tensor:
    """Of all labels in reading order."""
    batch = batch.to(model.device)
    arguments = {name: tensor for name, tensor in batch.arguments.items() if name != "labels"}
    logits = model(**arguments, use_cache=False).logits[:, :-1].float()
    labels = batch.labels[:, 1:]
    chosen = logits.log_softmax(dim=-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return chosen[labels != IGNORED]
