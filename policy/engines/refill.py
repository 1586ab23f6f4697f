"""Continuous refill: places of finished rows go to the next prompts while the others decode on.

Plain batches wait for their longest row. Here rows stand in places; once enough of them are free, waiting rows
are prefilled and joined to the running cache, aligned at its end. A row keeps its own uniforms, yet its last
bits depend on its neighbours, so no equality after a resume is claimed for this engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from harness.records import Generation, Sampling
from policy.engines.cache import GROWTH_TOKENS, RoomCache, join_caches
from policy.engines.decode import THINNING_SHARE, Batch, Decoder, DecodeState, check_finite
from policy.engines.sampler import pick, row_key, row_uniforms
from policy.engines.transformers_engine import Request, TransformersEngine, failed_generation
from policy.errors import PolicyError

REFILL_SHARE = 0.125
"""Free places are filled once they are this share of all: a join copies the cache, so one at a time would cost more."""


class Finished(NamedTuple):
    """A row with its whole answer."""

    row: int
    tokens: list[int]
    log_probabilities: list[float]


@dataclass(frozen=True)
class Queue:
    """Rows to answer, in order; rows of one prompt should stand together, for they share its prefill then."""

    rows: Sequence[int]
    prompts: Sequence[int]
    """Per row, the index of its prompt in ``suffixes``."""
    suffixes: Sequence[Sequence[int]]
    """Distinct prompts, token ids after the shared prefix; none is empty."""
    uniforms: Callable[[int], torch.Tensor]
    """Of a row, (max_tokens,) in [0, 1)."""


class _Part(NamedTuple):
    """Rows of one state: what a join puts together."""

    state: DecodeState
    places: list[int]

    def mask(self) -> torch.Tensor:
        """(rows, tokens in the cache): 1 where a token counts."""
        length = self.state.cache.get_seq_length()
        if self.state.mask is None:
            return torch.ones((len(self.places), length), dtype=torch.long, device=self.state.logits.device)
        return self.state.mask[self.places, :length]


@dataclass
class _Places:
    """Rows that decode together; item i of every field belongs to ``rows[i]``."""

    rows: list[int]
    state: DecodeState
    uniforms: torch.Tensor
    used: torch.Tensor
    """Tokens sampled so far."""

    @property
    def live(self) -> list[int]:
        """Which places are still decoding."""
        return [place for place, is_live in enumerate(self.state.is_live.tolist()) if is_live]

    def thin(self, live: list[int]) -> None:
        """Drop finished rows."""
        self.state.thin(self.state.rows, GROWTH_TOKENS)
        self.rows = [self.rows[place] for place in live]
        self.uniforms, self.used = self.uniforms[live], self.used[live]


@dataclass
class Refiller:
    """Answers a queue of rows in a fixed number of places."""

    decoder: Decoder
    prefix: RoomCache | None
    sampling: Sampling
    size: int
    """Places."""
    _answers: dict[int, Finished] = field(default_factory=dict)
    _kept: tuple[int, DecodeState, int] | None = None
    """The prompt prefilled last, and where: more rows of it may wait."""

    def run(self, queue: Queue) -> Iterator[Finished]:
        """Every row's answer, as soon as it is whole.

        Raises:
            PolicyError: the model's logits are not finite.
        """
        waiting = deque(zip(queue.rows, queue.prompts, strict=True))
        places: _Places | None = None
        while places is not None or waiting:
            live = places.live if places is not None else []
            free = self.size - len(live)
            if waiting and (not live or free >= REFILL_SHARE * self.size):
                admitted = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                places = self._join(places, live, admitted, queue)
            assert places is not None
            tokens = self._sample(places)
            live = places.live
            for place in sorted(set(range(len(places.rows))) - set(live)):
                if (finished := self._answers.pop(places.rows[place], None)) is not None:
                    yield finished
            if not live:
                places = None
                continue
            if not waiting and len(live) <= THINNING_SHARE * len(places.rows):
                places.thin(live)
                tokens = tokens[live]
            places.state.step(self.decoder, tokens)

    def _sample(self, places: _Places) -> torch.Tensor:
        """Sample one token per place and note it where the row is live."""
        state, limit = places.state, self.sampling.max_tokens
        step = places.used.clamp(max=limit - 1)
        drawn = places.uniforms.gather(1, step[:, None])[:, 0]
        picked = pick(state.logits, drawn, temperature=self.sampling.temperature, top_p=self.sampling.top_p)
        check_finite(state.logits, picked.log_probabilities)
        sampled, scores = picked.tokens.tolist(), picked.log_probabilities.tolist()
        for place in places.live:
            answer = self._answers[places.rows[place]]
            answer.tokens.append(sampled[place])
            answer.log_probabilities.append(scores[place])
        places.used = places.used + 1
        stops = torch.tensor(self.decoder.stop_token_ids, device=state.logits.device)
        state.is_live = state.is_live & ~torch.isin(picked.tokens, stops) & (places.used < limit)
        return picked.tokens

    def _join(self, places: _Places | None, live: list[int], admitted: list[tuple[int, int]], queue: Queue) -> _Places:
        """Places with the live rows and the admitted ones."""
        rows = [places.rows[place] for place in live] if places is not None else []
        parts = [_Part(places.state, live)] if places is not None and live else []
        for part, added in self._prefill(admitted, queue):
            parts.append(part)
            rows += added
        for row, _ in admitted:
            self._answers[row] = Finished(row, [], [])
        state = join_states(parts, self.sampling.max_tokens)
        device = state.logits.device
        fresh = [queue.uniforms(row) for row in rows[len(live) :]]
        kept = [places.uniforms[live]] if places is not None and live else []
        used = [places.used[live]] if places is not None and live else []
        return _Places(
            rows=rows,
            state=state,
            uniforms=torch.cat([*kept, torch.stack(fresh).to(device)]),
            used=torch.cat([*used, torch.zeros(len(fresh), dtype=torch.long, device=device)]),
        )

    def _prefill(self, admitted: list[tuple[int, int]], queue: Queue) -> list[tuple[_Part, list[int]]]:
        """The admitted rows' prompts, each run once."""
        parts: list[tuple[_Part, list[int]]] = []
        if self._kept is not None:
            prompt, state, place = self._kept
            known = [row for row, wanted in admitted if wanted == prompt]
            if known:
                parts.append((_Part(state, [place] * len(known)), known))
                admitted = [(row, wanted) for row, wanted in admitted if wanted != prompt]
        if admitted:
            order: dict[int, int] = {}
            index = [order.setdefault(prompt, len(order)) for _, prompt in admitted]
            batch = Batch([queue.suffixes[prompt] for prompt in order], list(range(len(order))), torch.empty(0))
            state = self.decoder.prefill(batch, self.prefix, self.sampling.max_tokens)
            parts.append((_Part(state, index), [row for row, _ in admitted]))
            self._kept = (admitted[-1][1], state, index[-1])
        return parts


def join_states(parts: Sequence[_Part], max_tokens: int) -> DecodeState:
    """Rows of several states as one, aligned at their last token; columns that no row needs any more go."""
    masks = [part.mask() for part in parts]
    length = max(mask.shape[1] - int(mask.any(dim=0).int().argmax()) for mask in masks)
    device, count = masks[0].device, sum(len(part.places) for part in parts)
    mask = torch.zeros((count, length + max_tokens), dtype=torch.long, device=device)
    mask[:, length:] = 1
    first = 0
    for old in masks:
        taken = min(old.shape[1], length)
        mask[first : first + len(old), length - taken : length] = old[:, -taken:]
        first += len(old)
    indices = [torch.tensor(part.places, device=device) for part in parts]
    caches = [(part.state.cache, index) for part, index in zip(parts, indices, strict=True)]
    return DecodeState(
        rows=torch.arange(count, device=device),
        is_live=torch.ones(count, dtype=torch.bool, device=device),
        logits=torch.cat([part.state.logits[index] for part, index in zip(parts, indices, strict=True)]),
        mask=mask,
        positions=torch.cat([part.state.positions[index] for part, index in zip(parts, indices, strict=True)]),
        cache=join_caches(caches, length, min(max_tokens, GROWTH_TOKENS)),
    )


class RefillingEngine(TransformersEngine):
    """A :class:`policy.engines.transformers_engine.TransformersEngine` whose places are refilled while others decode.

    Raises:
        PolicyError: the model's cache cannot be rearranged, or it is shown images.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if not self.decoder.is_plain or self.vision is not None:
            raise PolicyError(
                f"policy.engine.refill cannot serve {type(self.model).__name__}: it keeps a window or a recurrent "
                "state, or is shown images; set refill to false"
            )

    def _answer(
        self, request: Request, rows: list[int], prefix: list[int], sampling: Sampling
    ) -> Iterator[tuple[list[int], list[Generation]]]:
        """Rows and their answers, each as soon as it is whole."""
        left = set(rows)
        try:
            cache = self.decoder.prefill_prefix(prefix) if rows else None
            queue = Queue(
                rows=rows,
                prompts=[request.row_prompts[row] for row in rows],
                suffixes=[ids[len(prefix) :] for ids in request.token_ids],
                uniforms=lambda row: row_uniforms([row_key(sampling, request.prompts[row])], sampling.max_tokens)[0],
            )
            for done in Refiller(self.decoder, cache, sampling, self.batch_size).run(queue):
                prompt = tuple(request.token_ids[request.row_prompts[done.row]])
                left.discard(done.row)
                yield [done.row], self.generations([prompt], [done.tokens], [done.log_probabilities])
        except (RuntimeError, IndexError, ValueError) as error:  # the engine boundary: memory, weights, ids
            lost = sorted(left)
            yield lost, [failed_generation(f"{type(error).__name__}: {error}") for _ in lost]
