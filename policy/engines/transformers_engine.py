"""Rollout engine over a transformers model: batched, seeded per row, prompts prefilled once.

The harness part of all prompts of a call is one shared token prefix: it is prefilled once per call.
The rollouts of one prompt share the prefill of that prompt. Rows are sorted by length into batches of
a fixed size; a sample depends on its own uniforms, not on where its row stands.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.protocols import Prompt
from harness.records import Generation, ImageFile, Message, Sampling, Usage
from policy.engines.cache import RoomCache, has_plain_layers
from policy.engines.decode import Batch, Decoder
from policy.engines.sampler import row_key, row_uniforms
from policy.errors import ImageError, PolicyError
from policy.vision import VisionReader, chat_text, prompt_images, see, text_alone, text_prefix

MIN_SHARED_PREFIX_TOKENS = 8


@dataclass(frozen=True)
class Request:
    """The rows of one call that can be answered, as distinct prompts and rows pointing to them."""

    prompts: Sequence[Prompt]
    token_ids: list[list[int]]
    """Distinct prompts; empty where one cannot be shown."""
    images: list[tuple[ImageFile, ...]]
    """Distinct prompts."""
    faults: dict[int, str]
    """Why a distinct prompt cannot be shown."""
    row_prompts: list[int]
    """Per row, the index of its distinct prompt."""

    def pairs(self, prompts: Iterable[int]) -> list[tuple[list[int], tuple[ImageFile, ...]]]:
        """Token ids and images of distinct prompts."""
        return [(self.token_ids[prompt], self.images[prompt]) for prompt in prompts]


class TransformersEngine:
    """A :class:`harness.protocols.RolloutEngine` over one model in this process.

    Args:
        model: a causal language model, or one wrapped by peft.
        tokenizer: its tokenizer, with a chat template.
        policy_id: content id of the weights.
        batch_size: rows decoded at once; part of a run's identity, since batching moves last bits.
        max_prompt_tokens: longest prompt; None takes the model's context less the completion. A longer
            prompt is an error, never cut.
        is_prefix_shared: False prefills every distinct prompt whole.
        vision: of a policy that sees; None shows no image.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        policy_id: str,
        batch_size: int = 64,
        *,
        max_prompt_tokens: int | None = None,
        is_prefix_shared: bool = True,
        vision: VisionReader | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1; got {batch_size}")
        self.model = model
        self.tokenizer = tokenizer
        self.policy_id = policy_id
        self.batch_size = batch_size
        self.max_prompt_tokens = max_prompt_tokens
        self.vision = vision
        is_plain = has_plain_layers(model.config)
        self.is_prefix_shared = is_prefix_shared and is_plain
        self.decoder = Decoder(model, tokenizer.pad_token_id, stop_token_ids(model, tokenizer), is_plain)
        self._lock = threading.Lock()

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """Answer every prompt, in order.

        Args:
            prompts: rendered prompts; identical ones are prefilled once.
            sampling: decoding settings for all of them.
            progress: called after each batch with the number of prompts answered so far in this call.

        Returns:
            One generation per prompt; a failure is a generation with ``finish_reason="error"``.
        """
        if not prompts:
            return []
        with self._lock, torch.inference_mode():
            was_training = self.model.training
            self.model.eval()
            try:
                return self._generate(prompts, sampling, progress)
            finally:
                self.model.train(was_training)

    def encode(self, conversations: Sequence[tuple[Message, ...]]) -> list[list[int]]:
        """Token ids of prompts, generation prompt included, image tokens expanded.

        Raises:
            ImageError: an image cannot be shown.
        """
        if self.vision is not None:
            return [self.vision.encode(messages) for messages in conversations]
        texts = [chat_text(self.tokenizer, text_alone(messages)) for messages in conversations]
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    def _generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Callable[[int], None] | None
    ) -> list[Generation]:
        request = self._prepare(prompts)
        limit = self._prompt_limit(sampling.max_tokens)
        results: list[Generation | None] = [None] * len(prompts)
        rows = []
        for row, prompt in enumerate(request.row_prompts):
            length = len(request.token_ids[prompt])
            if prompt in request.faults:
                results[row] = failed_generation(request.faults[prompt])
            elif length > limit:
                said = f"prompt has {length} tokens, the limit is {limit}; shorten the harness"
                results[row] = failed_generation(said)
            else:
                rows.append(row)
        rows.sort(key=lambda row: (len(request.token_ids[request.row_prompts[row]]), request.row_prompts[row]))
        prefix = self._shared_prefix(request, rows)
        done = len(prompts) - len(rows)
        for batch, answers in self._answer(request, rows, prefix, sampling):
            for row, answer in zip(batch, answers, strict=True):
                results[row] = answer
            done += len(batch)
            if progress is not None:
                progress(done)
        return [result for result in results if result is not None]

    def _answer(
        self, request: Request, rows: list[int], prefix: list[int], sampling: Sampling
    ) -> Iterator[tuple[list[int], list[Generation]]]:
        """Rows and their answers, batch by batch."""
        cache: RoomCache | None = None
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            try:
                if prefix and cache is None:
                    cache = self.decoder.prefill_prefix(prefix)
                answers = self._run(request, batch, len(prefix), cache, sampling)
            except (RuntimeError, IndexError, ValueError) as error:  # the engine boundary: memory, weights, ids
                answers = [failed_generation(f"{type(error).__name__}: {error}") for _ in batch]
            yield batch, answers

    def _prepare(self, prompts: Sequence[Prompt]) -> Request:
        index: dict[tuple[Message, ...], int] = {}
        row_prompts = [index.setdefault(prompt.messages, len(index)) for prompt in prompts]
        if self.vision is None:
            return Request(prompts, self.encode(list(index)), [() for _ in index], {}, row_prompts)
        token_ids: list[list[int]] = []
        faults: dict[int, str] = {}
        for number, messages in enumerate(index):
            try:
                token_ids.append(self.vision.encode(messages))
            except ImageError as error:
                token_ids.append([])
                faults[number] = f"ImageError: {error}"
        return Request(prompts, token_ids, [prompt_images(messages) for messages in index], faults, row_prompts)

    def _prompt_limit(self, max_tokens: int) -> int:
        text_config = self.model.config.get_text_config()
        context = getattr(text_config, "max_position_embeddings", None) or 2**31
        limit = int(context) - max_tokens
        return limit if self.max_prompt_tokens is None else min(limit, self.max_prompt_tokens)

    def _shared_prefix(self, request: Request, rows: list[int]) -> list[int]:
        """Longest common token prefix of the prompts at hand; each keeps at least one token of its own."""
        if not rows or not self.is_prefix_shared:
            return []
        prompts = sorted({request.row_prompts[row] for row in rows})
        used = [request.token_ids[prompt] for prompt in prompts]
        shared = os.path.commonprefix([min(used), max(used)])
        shared = shared[: min(len(ids) for ids in used) - 1][: text_prefix(request.pairs(prompts), self.vision)]
        return list(shared) if len(shared) >= MIN_SHARED_PREFIX_TOKENS else []

    def _run(
        self, request: Request, batch: list[int], skip: int, cache: RoomCache | None, sampling: Sampling
    ) -> list[Generation]:
        order: dict[int, int] = {}
        row_prompts = [order.setdefault(request.row_prompts[row], len(order)) for row in batch]
        keys = [row_key(sampling, request.prompts[row]) for row in batch]
        suffixes = [request.token_ids[prompt][skip:] for prompt in order]
        seen = see(self.vision, self.model, request.pairs(order))
        uniforms = row_uniforms(keys, sampling.max_tokens)
        decoded = self.decoder.decode(Batch(suffixes, row_prompts, uniforms, seen), cache, sampling)
        lengths = decoded.lengths.tolist()
        tokens = [ids[:count] for ids, count in zip(decoded.tokens.tolist(), lengths, strict=True)]
        log_probabilities = [row[:n] for row, n in zip(decoded.log_probabilities.tolist(), lengths, strict=True)]
        prompt_ids = [tuple(request.token_ids[prompt]) for prompt in order]
        return self.generations([prompt_ids[prompt] for prompt in row_prompts], tokens, log_probabilities)

    def generations(
        self,
        prompt_ids: Sequence[tuple[int, ...]],
        tokens: Sequence[Sequence[int]],
        log_probabilities: Sequence[Sequence[float]],
    ) -> list[Generation]:
        """Sampled ids as generations, one per row."""
        stops = set(self.decoder.stop_token_ids)
        bodies = [ids[:-1] if ids[-1] in stops else ids for ids in tokens]
        texts = self.tokenizer.batch_decode(bodies, skip_special_tokens=False)
        return [
            Generation(
                text=text,
                finish_reason="stop" if ids[-1] in stops else "length",
                prompt_token_ids=prompt,
                token_ids=tuple(ids),
                log_probabilities=tuple(scores),
                policy_id=self.policy_id,
                usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(ids)),
            )
            for text, ids, scores, prompt in zip(texts, tokens, log_probabilities, prompt_ids, strict=True)
        ]


def stop_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """End tokens: the model's generation config and the tokenizer may name different ones."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    named = [configured] if isinstance(configured, int) else list(configured or ())
    return tuple(sorted({*named, tokenizer.eos_token_id}))


def failed_generation(error: str) -> Generation:
    """An attempt without an answer; it is unscored, never a 0."""
    return Generation(text="", finish_reason="error", error=error)


__all__ = ["PolicyError", "Request", "TransformersEngine", "failed_generation", "stop_token_ids"]
