"""Key-value cache with room: appended in place, shared over a prefix, thinned as rows finish.

The library's dynamic cache concatenates, which copies the whole cache at every token; at a batch of
a hundred rows that copy costs more than the model. This one writes into buffers that grow in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionLayer

GROWTH_TOKENS = 64
GATED_DELTA_MODELS = ("qwen3_5_text",)
"""Recurrent language models that are tested to go on from a repeated state, several tokens at once."""


class RoomLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, (rows, heads, capacity, size), of which ``length`` are in use."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    def hold(self, keys: torch.Tensor, values: torch.Tensor, room: int) -> None:
        """Take over ``keys`` and ``values`` with space for ``room`` more tokens."""
        self._keys, self._values = _with_room(keys, room), _with_room(values, room)
        self.length = keys.shape[-2]
        self._show()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append in place and return views of all tokens so far."""
        count = key_states.shape[-2]
        if self._keys is None or self._values is None:
            self.hold(key_states, value_states, room=0)
            return self.keys, self.values
        if self.length + count > self._keys.shape[-2]:
            self._keys = _with_room(self.keys, max(count, GROWTH_TOKENS))
            self._values = _with_room(self.values, max(count, GROWTH_TOKENS))
        self._keys[:, :, self.length : self.length + count] = key_states
        self._values[:, :, self.length : self.length + count] = value_states
        self.length += count
        self._show()
        return self.keys, self.values

    def take(self, rows: torch.Tensor, room: int) -> RoomLayer:
        """A new layer with the given rows (repeats allowed) and space for ``room`` more tokens."""
        layer = RoomLayer()
        layer.hold(self.keys.index_select(0, rows), self.values.index_select(0, rows), room)
        return layer

    @classmethod
    def join(cls, parts: Sequence[tuple[RoomLayer, torch.Tensor]], length: int, room: int) -> RoomLayer:
        """A new layer of rows from several, aligned at their last token.

        Args:
            parts: layers, and which of their rows.
            length: tokens kept, counted from the end; shorter layers have zeros before their first.
            room: space for more tokens.
        """
        layer, count = cls(), sum(len(rows) for _, rows in parts)
        _, heads, _, size = parts[0][0].keys.shape
        layer._keys = parts[0][0].keys.new_zeros(count, heads, length + room, size)  # zeros: masked, and never NaN
        layer._values = parts[0][0].values.new_zeros(count, heads, length + room, parts[0][0].values.shape[-1])
        first = 0
        for part, rows in parts:
            last, taken = first + len(rows), min(part.length, length)
            layer._keys[first:last, :, length - taken : length] = part.keys.index_select(0, rows)[:, :, -taken:]
            layer._values[first:last, :, length - taken : length] = part.values.index_select(0, rows)[:, :, -taken:]
            first = last
        layer.length = length
        layer._show()
        return layer

    def get_seq_length(self) -> int:
        """Tokens in use."""
        return self.length

    def _show(self) -> None:
        assert self._keys is not None and self._values is not None
        self.keys = self._keys[:, :, : self.length]
        self.values = self._values[:, :, : self.length]
        self.device, self.is_initialized = self._keys.device, True


def _with_room(tensor: torch.Tensor, room: int) -> torch.Tensor:
    if room == 0:
        return tensor
    rows, heads, length, size = tensor.shape
    buffer = tensor.new_empty(rows, heads, length + room, size)
    buffer[:, :, :length] = tensor
    return buffer


class RoomCache(Cache):  # type: ignore[misc]
    """A cache of :class:`RoomLayer`."""

    def __init__(self, layers: list[RoomLayer] | None = None) -> None:
        if layers is None:
            super().__init__(layer_class_to_replicate=RoomLayer)
        else:
            super().__init__(layers=layers)

    def take(self, rows: torch.Tensor, room: int) -> RoomCache:
        """A new cache with the given rows (repeats allowed) and space for ``room`` more tokens."""
        return RoomCache([layer.take(rows, room) for layer in self.layers])


def join_caches(parts: Sequence[tuple[RoomCache, torch.Tensor]], length: int, room: int) -> RoomCache:
    """Rows of several caches as one; see :meth:`RoomLayer.join`."""
    layers = zip(*(cache.layers for cache, _ in parts), strict=True)
    rows = [index for _, index in parts]
    return RoomCache([RoomLayer.join(list(zip(same, rows, strict=True)), length, room) for same in layers])


class GradientStateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """A recurrent layer's state that gradients flow through: replaced at every update, never written in place."""

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Append inputs of the convolution, keep the last of them, and return them with those before."""
        if not self.is_conv_states_initialized[state_idx]:
            self.dtype, self.device = conv_states.dtype, conv_states.device
            self.conv_kernel_size[state_idx] = conv_kernel_size or conv_states.shape[-1]
            self.is_conv_states_initialized[state_idx] = True
        size = self.conv_kernel_size[state_idx]
        if self.has_previous_state[state_idx]:
            conv_states = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        elif conv_states.shape[-1] < size:
            conv_states = torch.nn.functional.pad(conv_states, (size - conv_states.shape[-1], 0))
        self.has_previous_state[state_idx] = True
        self.conv_states[state_idx] = conv_states[..., -size:]
        return conv_states

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        """Take the new state."""
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = True
        return recurrent_states


def gradient_cache(config: Any) -> DynamicCache:
    """An empty cache of a model's own layers, through which gradients flow."""
    cache = DynamicCache(config=config)
    cache.layers = [GradientStateLayer() if type(layer) is LinearAttentionLayer else layer for layer in cache.layers]
    return cache


def has_repeatable_states(config: Any) -> bool:
    """Whether a model keeps all keys or states of the gated delta rule, which a prompt's samples can go on from.

    Other recurrent layers may continue from a cache token by token alone, so they are not taken for granted.
    """
    layers = DynamicCache(config=config).layers
    is_known = config.get_text_config(decoder=True).model_type in GATED_DELTA_MODELS
    return is_known and all(type(layer) in (DynamicLayer, LinearAttentionLayer) for layer in layers)


def has_plain_layers(config: Any) -> bool:
    """Whether every layer of a model keeps all keys (no sliding window, no recurrent state).

    Only then can a shared prefix be prefilled apart and rows be rearranged by this module.
    """
    layers = DynamicCache(config=config).layers
    return all(type(layer) is DynamicLayer for layer in layers)
