"""From encoded records to the micro-batches of an update: order, layout, padding or packing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from policy.config import SftConfig
from policy.sft.tokens import SftTokens
from policy.task_stream import derive_seed
from policy.vision import SeenBatch

IGNORED = -100
"""Label of a token that is no part of the loss."""


class RecordStream:
    """The order in which a stage meets its records: all epochs as one stream, addressed by position.

    Position ``i`` is entry ``i % n`` of the shuffled epoch ``i // n`` over ``n`` records.
    """

    def __init__(self, records: Sequence[SftTokens], config: SftConfig, seed: int) -> None:
        self._records = tuple(records)
        self._config = config
        self._seed = seed

    def update(self, number: int) -> list[SftTokens]:
        """Records of an update, from 0; only the stage's last may have fewer than ``batch_size``."""
        first = number * self._config.batch_size
        end = min(first + self._config.batch_size, self.end)
        return [self._at(position) for position in range(first, end)]

    @property
    def end(self) -> int:
        """Positions in the whole stage."""
        return self._config.epochs * len(self._records)

    def _at(self, position: int) -> SftTokens:
        epoch, index = divmod(position, len(self._records))
        return self._records[self._order(epoch)[index]]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._records)))
        random.Random(derive_seed("sft-order", self._seed, epoch)).shuffle(order)
        return order


@dataclass(frozen=True)
class SftMicroBatch:
    """One forward and backward pass."""

    input_ids: Tensor
    """(rows, tokens), padded on the right."""
    labels: Tensor
    """(rows, tokens); -100 where a token is no part of the loss: prompts, padding, the first token of a record."""
    update_tokens: int
    """Tokens in the loss of the whole update, over all its micro-batches and processes: the normaliser."""
    tokens: int
    """Tokens of records; the rest of the cells is padding."""
    attention_mask: Tensor | None = None
    """None where records are packed: their position ids then tell them apart."""
    position_ids: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    """Images, as the model takes them."""

    @property
    def cells(self) -> int:
        """Tokens that the pass computes, padding included."""
        return self.input_ids.numel()

    def to(self, device: Any) -> SftMicroBatch:
        """The same on a device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved, extra={name: tensor.to(device) for name, tensor in self.extra.items()})

    @property
    def arguments(self) -> dict[str, Tensor]:
        """What the model takes, labels included."""
        given = {"attention_mask": self.attention_mask, "position_ids": self.position_ids}
        kept = {name: tensor for name, tensor in given.items() if tensor is not None}
        return {"input_ids": self.input_ids, "labels": self.labels, **kept, **self.extra}


def passes_per_update(config: SftConfig, *, processes: int = 1) -> int:
    """Forward passes that each process makes for one update; the same for every update of a stage."""
    micro = config.micro_batch_size or math.ceil(config.batch_size / processes)
    return math.ceil(config.batch_size / (micro * processes))


def cut_update(
    records: Sequence[SftTokens], config: SftConfig, *, process: int = 0, processes: int = 1
) -> list[list[SftTokens]]:
    """One process's share of an update's records, by forward pass, with similar lengths in each.

    Args:
        records: of the whole update.
        config: of the stage.
        process: index of this process.
        processes: how many share the update.

    Returns:
        :func:`passes_per_update` lists; a short last update leaves some of them shorter or empty.
    """
    cuts = passes_per_update(config, processes=processes) * processes
    ordered = sorted(records, key=lambda record: (len(record), record.record_id))
    size, larger = divmod(len(ordered), cuts)
    made, start = [], 0
    for index in range(cuts):
        end = start + size + (index < larger)
        made.append(ordered[start:end])
        start = end
    return made[process::processes]


def micro_batch(
    records: Sequence[SftTokens],
    *,
    update_tokens: int,
    pad_token_id: int,
    row_limit: int | None = None,
    seen: SeenBatch | None = None,
) -> SftMicroBatch:
    """Lay records out as rows.

    Args:
        records: of one forward pass; none gives one row of padding, which adds nothing to a loss.
        update_tokens: tokens in the loss of the whole update.
        pad_token_id: fills rows up.
        row_limit: pack records, in order, into rows of at most this many tokens; None gives each its own row.
        seen: images of the records, where the policy sees.
    """
    rows = [[record] for record in records] if row_limit is None else _packed_rows(records, row_limit)
    width = max([sum(map(len, row)) for row in rows], default=2)
    shape = (max(1, len(rows)), width)
    ids, labels = torch.full(shape, pad_token_id), torch.full(shape, IGNORED)
    mask, positions = torch.zeros(shape, dtype=torch.long), torch.arange(width).repeat(shape[0], 1)
    for number, row in enumerate(rows):
        start = 0
        for record in row:
            own = slice(start, start + len(record))
            ids[number, own] = torch.tensor(record.prompt + record.completion)
            labels[number, start + len(record.prompt) : own.stop] = torch.tensor(record.completion)
            mask[number, own] = 1
            positions[number, own] = torch.arange(len(record))
            start = own.stop
        positions[number, start:] = torch.arange(width - start)  # padding is one more sequence, which nothing reads
    layout: dict[str, Any] = {"attention_mask": mask} if row_limit is None else {"position_ids": positions}
    if seen is not None:
        layout |= {"position_ids": _seen_positions(seen, records, width), "extra": seen.arguments}
    return SftMicroBatch(ids, labels, update_tokens, tokens=sum(map(len, records)), **layout)


def _packed_rows(records: Sequence[SftTokens], limit: int) -> list[list[SftTokens]]:
    rows: list[list[SftTokens]] = []
    for record in records:
        room = next((row for row in rows if sum(map(len, row)) + len(record) <= limit), None)
        rows.append([record]) if room is None else room.append(record)
    return rows


def _seen_positions(seen: SeenBatch, records: Sequence[SftTokens], width: int) -> Tensor:
    """(3, rows, width) position ids: an image's run over rows and columns, text goes on after the largest."""
    padded = torch.zeros(3, len(records), width, dtype=torch.long, device=seen.grids.device)
    for row, (record, prompt, last) in enumerate(zip(records, seen.positions, seen.last_positions(), strict=True)):
        steps = torch.arange(1, len(record.completion) + 1, device=padded.device)
        padded[:, row, : len(record)] = torch.cat([prompt, (last + steps).expand(3, -1)], dim=1)
    return padded
