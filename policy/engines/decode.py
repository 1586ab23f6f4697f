"""Decode one batch: prefill each distinct prompt once, expand it to its rows, sample to the end."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import DynamicCache

from harness.records import Sampling
from policy.engines.cache import GROWTH_TOKENS, RoomCache
from policy.engines.sampler import pick
from policy.errors import PolicyError
from policy.vision import SeenBatch

THINNING_SHARE = 0.75
"""Finished rows leave the batch once the rows still running fall to this share of it."""


@dataclass(frozen=True)
class Batch:
    """Rows decoded together."""

    suffixes: Sequence[Sequence[int]]
    """Distinct prompts, token ids after the shared prefix; none is empty."""
    row_prompts: Sequence[int]
    """Per row, the index of its prompt in ``suffixes``."""
    uniforms: torch.Tensor
    """(rows, max_tokens) in [0, 1)."""
    seen: SeenBatch | None = None
    """Images of the distinct prompts, none of them in the shared prefix."""


class Decoded(NamedTuple):
    """Sampled tokens of a batch; only the first ``lengths[row]`` entries of a row count."""

    tokens: torch.Tensor
    log_probabilities: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True)
class Decoder:
    """A model with what its decoding needs to know."""

    model: Any
    pad_token_id: int
    stop_token_ids: tuple[int, ...]
    is_plain: bool
    """Every layer keeps all keys, so caches can be shared and thinned in place."""

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        cache: Any,
        images: Mapping[str, torch.Tensor] | None = None,
    ) -> Any:
        """Logits of the last position, (rows, vocabulary); the cache is extended."""
        named = {cache_argument(self.model): cache, **last_logits_only(self.model), **(images or {})}
        output = self.model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True, **named)
        return output.logits[:, -1]

    def prefill_prefix(self, prefix: Sequence[int]) -> RoomCache | None:
        """Cache of the tokens that all prompts share, one row; None for an empty prefix."""
        if not prefix:
            return None
        device = self.model.device
        cache = RoomCache()
        tokens = torch.tensor([list(prefix)], device=device)
        self.forward(tokens, None, torch.arange(len(prefix), device=device)[None], cache)
        return cache

    def decode(self, batch: Batch, prefix: RoomCache | None, sampling: Sampling) -> Decoded:
        """Sample every row of a batch to its end token or ``sampling.max_tokens``.

        Raises:
            PolicyError: the model's logits are not finite.
        """
        state = self.prefill(batch, prefix, sampling.max_tokens)
        rows, limit = len(batch.row_prompts), sampling.max_tokens
        device = state.logits.device
        tokens = torch.full((rows, limit), self.pad_token_id, device=device)
        log_probabilities = torch.zeros((rows, limit), device=device)
        lengths = torch.zeros(rows, dtype=torch.long, device=device)
        uniforms = batch.uniforms.to(device)
        stops = torch.tensor(self.stop_token_ids, device=device)
        for step in range(limit):
            picked = pick(
                state.logits, uniforms[state.rows, step], temperature=sampling.temperature, top_p=sampling.top_p
            )
            check_finite(state.logits, picked.log_probabilities)
            live = state.rows[state.is_live]
            tokens[live, step] = picked.tokens[state.is_live]
            log_probabilities[live, step] = picked.log_probabilities[state.is_live]
            lengths[live] = step + 1
            state.is_live = state.is_live & ~torch.isin(picked.tokens, stops)
            count = int(state.is_live.sum())
            if count == 0 or step + 1 == limit:
                break
            next_tokens = picked.tokens
            if count <= THINNING_SHARE * len(state.rows):
                next_tokens = state.thin(next_tokens, limit - step - 1)
            state.step(self, next_tokens)
        return Decoded(tokens, log_probabilities, lengths)

    def prefill(self, batch: Batch, prefix: RoomCache | None, max_tokens: int) -> DecodeState:
        """Run the prompts of a batch and repeat them over its rows; nothing is sampled yet."""
        device = self.model.device
        count, width = len(batch.suffixes), max(len(suffix) for suffix in batch.suffixes)
        shared = prefix.get_seq_length() if prefix is not None else 0
        tokens = torch.full((count, width), self.pad_token_id)
        mask = torch.zeros((count, shared + width + max_tokens), dtype=torch.long)
        for row, suffix in enumerate(batch.suffixes):
            tokens[row, width - len(suffix) :] = torch.tensor(suffix)
            mask[row, shared + width - len(suffix) :] = 1
        mask[:, :shared] = 1
        tokens, mask = tokens.to(device), mask.to(device)
        positions = (mask.cumsum(dim=-1) - 1).clamp_(min=0)
        if prefix is not None:
            cache: Any = prefix.take(torch.zeros(count, dtype=torch.long, device=device), room=width)
        else:
            cache = RoomCache() if self.is_plain else DynamicCache(config=self.model.config)
        end = shared + width
        is_padded = bool((mask == 0).any())
        own, last = positions[:, shared:end], positions[:, end - 1 : end]
        if batch.seen is not None:
            own, last = batch.seen.padded_positions(shared, width), batch.seen.last_positions()
        images = batch.seen.arguments if batch.seen is not None else None
        logits = self.forward(tokens, mask[:, :end] if is_padded else None, own, cache, images)
        rows = torch.tensor(batch.row_prompts, device=device)
        return DecodeState(
            rows=torch.arange(len(rows), device=device),
            is_live=torch.ones(len(rows), dtype=torch.bool, device=device),
            logits=logits.index_select(0, rows),
            mask=mask.index_select(0, rows) if is_padded else None,
            positions=last.index_select(0, rows),
            cache=_take(cache, rows, min(max_tokens, GROWTH_TOKENS)),
        )


@dataclass
class DecodeState:
    """A batch between two tokens; row i of every field belongs to output row ``rows[i]``."""

    rows: torch.Tensor
    is_live: torch.Tensor
    logits: torch.Tensor
    mask: torch.Tensor | None
    positions: torch.Tensor
    cache: Any

    def step(self, decoder: Decoder, tokens: torch.Tensor) -> None:
        """Feed one token per row."""
        self.positions = self.positions + 1
        end = int(self.cache.get_seq_length()) + 1
        mask = self.mask[:, :end] if self.mask is not None else None
        self.logits = decoder.forward(tokens[:, None], mask, self.positions, self.cache)

    def thin(self, tokens: torch.Tensor, room: int) -> torch.Tensor:
        """Drop finished rows; returns the tokens of the rows that stay."""
        kept = self.is_live.nonzero()[:, 0]
        self.rows, self.is_live, self.positions = self.rows[kept], self.is_live[kept], self.positions[kept]
        self.mask = self.mask[kept] if self.mask is not None else None
        self.cache = _take(self.cache, kept, min(room, GROWTH_TOKENS))
        return tokens[kept]


def _take(cache: Any, rows: torch.Tensor, room: int) -> Any:
    if isinstance(cache, RoomCache):
        return cache.take(rows, room)
    cache.reorder_cache(rows)  # of any length, repeats allowed; recurrent states are selected too
    return cache


def check_finite(logits: torch.Tensor, log_probabilities: torch.Tensor) -> None:
    """Masked logits may be -inf; a NaN anywhere reaches the largest logit and the log-probability."""
    if not bool(torch.isfinite(logits.max(dim=-1).values).all() & torch.isfinite(log_probabilities).all()):
        raise PolicyError("the model's logits are not finite; the weights are broken or the prompt overflows; stop")


def cache_argument(model: Any) -> str:
    """Name of the cache argument: ``cache`` from transformers 5.24 on, ``past_key_values`` before."""
    return "cache" if "cache" in _arguments(type(_unwrapped(model)).forward) else "past_key_values"


def last_logits_only(model: Any) -> dict[str, int]:
    """Arguments that make a model project its last position alone; empty where it cannot."""
    return {"logits_to_keep": 1} if "logits_to_keep" in _arguments(type(_unwrapped(model)).forward) else {}


def _unwrapped(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@functools.cache
def _arguments(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)
