"""Log-probabilities of sampled completions under the current weights, with shared prompts computed once.

The rollouts of a group share their prompt and all prompts share the harness. A plain forward pass over
(samples, prompt + completion) computes that text again for every sample; here it runs once, its keys and
values are repeated over the samples, and gradients flow back through the repetition. The loss and its
gradient are those of the plain pass.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.records import ImageFile
from policy.engines.cache import gradient_cache, has_plain_layers, has_repeatable_states
from policy.engines.decode import cache_argument, last_logits_only
from policy.loss import entropy
from policy.process import bare, sharding
from policy.vision import SeenBatch, Viewer, sampled_placeholders


@dataclass(frozen=True)
class TokenBatch:
    """Samples as padded tensors: prompts once each, completions per sample."""

    prefix: Tensor
    """(prefix tokens,) shared by all prompts; may be empty."""
    suffix: Tensor
    """(distinct prompts, tokens) after the prefix, padded on the left."""
    suffix_mask: Tensor
    """1 where ``suffix`` is a token."""
    rows: Tensor
    """(samples,) index of each sample's prompt."""
    completion: Tensor
    """(samples, tokens) sampled ids, padded on the right."""
    completion_mask: Tensor
    """1 where ``completion`` is a sampled token that counts in the loss."""
    seen: SeenBatch | None = None
    """Images of the distinct prompts, none of them in ``prefix``."""


class Likelihood(NamedTuple):
    """Per completion token, (samples, tokens); entries at padding mean nothing."""

    log_probabilities: Tensor
    entropy: Tensor
    """Of the distribution at that token, in nats; carries a gradient only where it was asked for."""


def token_batch(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    pad_token_id: int,
    device: Any = "cpu",
    images: Sequence[tuple[ImageFile, ...]] | None = None,
    viewer: Viewer | None = None,
) -> TokenBatch:
    """Pad samples for :func:`completion_likelihood`.

    Args:
        prompts: token ids of each sample's prompt; equal ones are kept once.
        completions: sampled ids; an empty one (an attempt without a score) gets a masked pad token.
        pad_token_id: fills the rest.
        device: where the tensors go.
        images: of each sample's prompt; None for prompts without.
        viewer: of a policy that sees; None shows no image.

    Raises:
        ImageError: an image is no longer the one that was sampled with.
    """
    index: dict[tuple[tuple[int, ...], tuple[ImageFile, ...]], int] = {}
    shown = images if images is not None and viewer is not None else [()] * len(prompts)
    pairs = [(tuple(prompt), files) for prompt, files in zip(prompts, shown, strict=True)]
    rows = [index.setdefault(pair, len(index)) for pair in pairs]
    distinct = [prompt for prompt, _ in index]
    shared = os.path.commonprefix(distinct)[: min(map(len, distinct)) - 1]
    if viewer is not None:
        shared = shared[: viewer.text_prefix(list(index))]
    suffixes = [prompt[len(shared) :] for prompt in distinct]
    width, length = max(map(len, suffixes)), max(1, *map(len, completions))
    suffix = torch.full((len(suffixes), width), pad_token_id)
    suffix_mask = torch.zeros_like(suffix)
    for row, ids in enumerate(suffixes):
        suffix[row, width - len(ids) :] = torch.tensor(ids)
        suffix_mask[row, width - len(ids) :] = 1
    completion = torch.full((len(completions), length), pad_token_id)
    completion_mask = torch.zeros_like(completion)
    for row, sampled in enumerate(completions):
        completion[row, : len(sampled)] = torch.tensor(sampled, dtype=torch.long)
        completion_mask[row, : len(sampled)] = 1
    return TokenBatch(
        prefix=torch.tensor(shared, dtype=torch.long, device=device),
        suffix=suffix.to(device),
        suffix_mask=suffix_mask.to(device),
        rows=torch.tensor(rows, device=device),
        completion=completion.to(device),
        completion_mask=completion_mask.to(device),
        seen=viewer.see(list(index)) if viewer is not None else None,
    )


def completion_likelihood(
    model: Any, batch: TokenBatch, *, temperature: float, has_entropy_gradient: bool = False
) -> Likelihood:
    """Score the sampled completions.

    Args:
        model: a causal language model, or one wrapped by peft.
        batch: from :func:`token_batch`.
        temperature: the logits are divided by it, as they were when sampling.
        has_entropy_gradient: for an entropy term in the loss; it keeps one more tensor of the logits' size.
    """
    logits = _shared_logits(model, batch) if _can_share(model) else _plain_logits(model, batch)
    logits = logits.float() / temperature
    normaliser = logits.logsumexp(dim=-1)
    chosen = logits.gather(-1, batch.completion[..., None])[..., 0]
    with torch.set_grad_enabled(has_entropy_gradient and torch.is_grad_enabled()):
        spread = entropy(logits)
    return Likelihood(chosen - normaliser, spread)


def _can_share(model: Any) -> bool:
    """Whether prompts can be computed apart: caches can be repeated, and the library leaves the cache on.

    Where parameters are cut over processes all of them must make the same number of forward passes, so one each.
    """
    if sharding():
        return False
    config = bare(model).config
    is_repeatable = has_plain_layers(config) or has_repeatable_states(config)
    return is_repeatable and not (model.training and is_recomputing(model))


def is_recomputing(model: Any) -> bool:
    """Whether activations are computed twice to save memory; the library then keeps no cache in training."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def _shared_logits(model: Any, batch: TokenBatch) -> Tensor:
    """Logits that predict each completion token, (samples, tokens, vocabulary)."""
    config = bare(model).config
    if not has_plain_layers(config):
        batch = _without_prefix(batch)  # padding behind a prefix would pass through the recurrent state
    name, cache = cache_argument(bare(model)), gradient_cache(config)
    last = last_logits_only(bare(model))
    shared = batch.prefix.numel()
    if shared:
        positions = torch.arange(shared, device=batch.prefix.device)[None]
        model(input_ids=batch.prefix[None], position_ids=positions, use_cache=True, **last, **{name: cache})
        cache.reorder_cache(torch.zeros(len(batch.suffix), dtype=torch.long, device=batch.suffix.device))
    mask = torch.cat([batch.suffix_mask.new_ones(len(batch.suffix), shared), batch.suffix_mask], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, shared:]
    is_padded, seen, ends = not bool(batch.suffix_mask.all()), batch.seen, positions[:, -1:]
    if seen is not None:
        positions, ends = seen.padded_positions(shared, batch.suffix.shape[1]), seen.last_positions()
    first: Tensor = model(
        input_ids=batch.suffix,
        attention_mask=mask if is_padded else None,
        position_ids=positions,
        use_cache=True,
        **last,
        **{name: cache},
        **(seen.arguments if seen is not None else {}),
    ).logits
    first = first[:, -1:].index_select(0, batch.rows)
    steps = batch.completion.shape[1] - 1
    if steps == 0:
        return first
    cache.reorder_cache(batch.rows)  # selects rows, repeats allowed; gradients add up over the repeats
    # Recurrent layers write a single token into their state in place, which gradients forbid: the last one is fed too.
    given = batch.completion[:, : max(steps, 2)]
    offsets = torch.arange(1, given.shape[1] + 1, device=batch.rows.device)
    row_mask = mask.index_select(0, batch.rows)
    whole = torch.cat([row_mask, row_mask.new_ones(given.shape)], dim=1)
    rest = model(
        input_ids=given,
        attention_mask=whole if is_padded else None,
        position_ids=ends.index_select(0, batch.rows) + offsets,
        use_cache=True,
        **{name: cache},
    ).logits
    return torch.cat([first, rest[:, :steps]], dim=1)


def _without_prefix(batch: TokenBatch) -> TokenBatch:
    """The same batch with every prompt whole, padded on the left."""
    prompts = len(batch.suffix)
    prefix = batch.prefix[None].expand(prompts, -1)
    ids = torch.cat([prefix, batch.suffix], dim=1)
    suffix, mask = _to_the_right(ids, torch.cat([torch.ones_like(prefix), batch.suffix_mask], dim=1))
    return replace(batch, prefix=batch.prefix[:0], suffix=suffix, suffix_mask=mask)


def _plain_logits(model: Any, batch: TokenBatch) -> Tensor:
    """The same for models whose caches cannot be repeated: every sample whole, all padding at its ends.

    Padding inside a sample would pass through a recurrent state or take room in a sliding window.
    """
    batch, length = _without_prefix(batch), batch.completion.shape[1]
    prompt, mask = batch.suffix.index_select(0, batch.rows), batch.suffix_mask.index_select(0, batch.rows)
    mask = torch.cat([mask, torch.ones_like(batch.completion)], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    seen, completion = batch.seen, batch.completion
    if seen is None:
        return _whole_logits(model, torch.cat([prompt, completion], dim=1), mask, positions, {})[:, -length - 1 : -1]
    offsets = torch.arange(1, length + 1, device=completion.device)
    after = (seen.last_positions().index_select(0, batch.rows) + offsets).expand(3, -1, -1)
    before = seen.padded_positions(0, prompt.shape[1]).index_select(1, batch.rows)
    placeholder = seen.placeholders[0]
    is_sampled = torch.cat([torch.zeros_like(prompt), completion == placeholder], dim=1).bool()
    ids = torch.cat([prompt, completion], dim=1).masked_fill(is_sampled, 0)
    with sampled_placeholders(model, is_sampled, placeholder):
        logits = _whole_logits(model, ids, mask, torch.cat([before, after], dim=2), seen.repeated(batch.rows.tolist()))
    return logits[:, -length - 1 : -1]


def _whole_logits(model: Any, ids: Tensor, mask: Tensor, positions: Tensor, images: dict[str, Tensor]) -> Tensor:
    output = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **images)
    logits: Tensor = output.logits
    return logits


def _to_the_right(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move padding before the tokens, whose order stays."""
    order = mask.argsort(dim=1, stable=True)
    return ids.gather(1, order), mask.gather(1, order)
