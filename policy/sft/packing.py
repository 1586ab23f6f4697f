"""Whether a model keeps packed records apart, found out by asking it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from policy.errors import TrainingError
from policy.sft.batch import IGNORED, SftMicroBatch
from policy.sft.tokens import SftTokens

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest difference in nats that two layouts of the same tokens may have by rounding."""
LEAK = 1e-6
"""The same in one layout whose other record is another: nothing is rounded differently, so nothing may differ."""


def check_packing(
    model: Any,
    records: Sequence[SftTokens],
    *,
    row_limit: int,
    lay_out: Callable[[list[SftTokens], int], SftMicroBatch],
) -> None:
    """Score two records in one row, the second behind another first, and each alone; refuse packing where they differ.

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
    first, second = pair
    other = replace(
        first, completion=first.completion[:1] * len(first.completion), prompt=second.prompt[:1] * len(first.prompt)
    )
    was_training = model.training
    model.eval()
    with torch.no_grad():
        together, behind_other = (_log_probabilities(model, lay_out([one, second], 1)) for one in (first, other))
        apart = torch.cat([_log_probabilities(model, lay_out([one], 1)) for one in pair])
    model.train(was_training)
    own = slice(len(first.completion), None)
    leak = float((together[own] - behind_other[own]).abs().max())
    gap = float((together - apart).abs().max())
    if not (leak <= LEAK and gap <= TOLERANCE.get(model.dtype, 0.1)):
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        attention = getattr(inner.config.get_text_config(), "_attn_implementation", "unknown")
        raise TrainingError(
            f"sft.packing is on and {type(inner).__name__} with attention {attention!r} does not keep packed records "
            f"apart: log-probabilities of a record change by {leak:.3g} nats with the record before it, and by "
            f"{gap:.3g} from a row of its own; set sft.packing to false"
        )


def _log_probabilities(model: Any, batch: SftMicroBatch) -> Tensor:
    """Of all labels in reading order."""
    batch = batch.to(model.device)
    arguments = {name: tensor for name, tensor in batch.arguments.items() if name != "labels"}
    logits = model(**arguments, use_cache=False).logits[:, :-1].float()
    labels = batch.labels[:, 1:]
    chosen = logits.log_softmax(dim=-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    scores: Tensor = chosen[labels != IGNORED]
    return scores
