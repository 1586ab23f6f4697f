"""Rollout engine over running vLLM servers: several replicas, adapters loaded and swapped while they run.

Prompts are rendered and tokenised here, with the policy's own tokenizer, and sent as token ids; sampled ids
and their log-probabilities come back. Text is decoded from the ids and never tokenised again. Weights go by
their content id: a server names its base model so (``--served-model-name``), an adapter is loaded under its
policy id, and an answer by any other name is refused.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.protocols import Prompt
from harness.records import Generation, Message, Sampling
from policy.config_engine import VllmServerConfig
from policy.engines.row_key import row_key
from policy.engines.vllm_replica import Dispatcher, Replica, ReplicaFault, RequestRefused, get, post
from policy.engines.vllm_wire import Dialect, Question
from policy.errors import PolicyError
from policy.vision import chat_text

if TYPE_CHECKING:
    import httpx

LIST_TIMEOUT_S = 30.0
"""Longest wait for a replica's list of models."""
SEED_BITS = 62
"""vLLM takes seeds of 64 bits with a sign."""


@dataclass(frozen=True)
class Speech:
    """What turns messages into token ids and back, without the weights."""

    tokenizer: Any
    stop_token_ids: tuple[int, ...]
    context_tokens: int
    """Prompt and completion together."""
    vocabulary: int = 2**31
    """Token ids lie below this."""

    def encode(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Token ids of a prompt, generation prompt included."""
        text = chat_text(self.tokenizer, messages)  # as the engine in this process renders it
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens shown."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def check_token(config: VllmServerConfig) -> None:
    """Refuse a token that is named and not there.

    Raises:
        UserError: the environment variable is not set.
    """
    if config.token_env and not os.environ.get(config.token_env):
        raise UserError(
            "the vLLM servers' token is missing",
            got=f"policy.engine.token_env={config.token_env}, which is not set",
            do="export it, or leave token_env out for servers without one",
        )


class VllmServerEngine:
    """A :class:`harness.protocols.RolloutEngine` over vLLM's OpenAI-compatible servers.

    Args:
        config: addresses, token, limits.
        speech: tokenizer, end tokens and context of the policy.
        policy_id: content id of the weights that shall answer.
        base_id: content id of the base; every replica must serve a model of that name.
        adapter: PEFT folder of the policy's adapters, on a file system that the servers see; None for the base.
    """

    def __init__(
        self, config: VllmServerConfig, speech: Speech, *, policy_id: str, base_id: str, adapter: Path | None = None
    ) -> None:
        if adapter is None and policy_id != base_id:
            raise ValueError(f"weights {policy_id} on base {base_id} need an adapter folder; got none")
        check_token(config)
        self.config = config
        self.speech = speech
        self.policy_id = policy_id
        self.base_id = base_id
        self._adapter = adapter
        self._loaded: dict[str, set[str]] = {url: set() for url in config.urls}
        """Adapters that this engine has put on each replica."""
        self._runner = asyncio.Runner()
        self._lock = threading.Lock()

    def load_weights(self, policy_id: str, adapter: Path) -> None:
        """Answer with other adapters from now on; replicas take them, and drop this engine's older ones.

        Args:
            policy_id: content id of the new weights.
            adapter: their PEFT folder, as by :func:`policy.engines.adapter_file.export_adapter`.

        Raises:
            PolicyError: no replica took them.
        """
        with self._lock:
            self.policy_id, self._adapter = policy_id, adapter.resolve()
            replicas = self._runner.run(self._ready())
        if all(replica.closed for replica in replicas):
            raise PolicyError(f"loading {policy_id} failed on every replica: {_said(replicas)}")

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """Answer every prompt, in order.

        Args:
            prompts: rendered prompts.
            sampling: decoding settings for all of them.
            progress: called with the number of prompts answered so far in this call.

        Returns:
            One generation per prompt; a failure is a generation with ``finish_reason="error"``.
        """
        if not prompts:
            return []
        with self._lock:
            return self._runner.run(self._generate(prompts, sampling, progress or _ignore))

    def close(self) -> None:
        """End the event loop behind the requests; the servers keep their adapters."""
        self._runner.close()

    async def _generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Callable[[int], None]
    ) -> list[Generation]:
        failed, questions = self._questions(prompts, sampling)
        if not questions:
            progress(len(prompts))
            return [failed[row] for row in range(len(prompts))]
        async with self._client() as client:
            replicas = await self._ready(client)
            dispatcher = Dispatcher(
                client=client,
                config=self.config,
                replicas=replicas,
                dialect=Dialect(
                    model=self.policy_id,
                    sampling=sampling,
                    stop_token_ids=self.speech.stop_token_ids,
                    decode=self.speech.decode,
                    is_logprob_processed=self.config.logprobs == "processed",
                    vocabulary=self.speech.vocabulary,
                ),
                progress=lambda count: progress(len(failed) + count),
            )
            answers = await dispatcher.run(questions)
        made = failed | answers
        return [made[row] for row in range(len(prompts))]

    def _questions(self, prompts: Sequence[Prompt], sampling: Sampling) -> tuple[dict[int, Generation], list[Question]]:
        failed: dict[int, Generation] = {}
        questions: list[Question] = []
        encoded: dict[tuple[Message, ...], tuple[int, ...]] = {}
        limit = self.speech.context_tokens - sampling.max_tokens
        for row, prompt in enumerate(prompts):
            if prompt.messages not in encoded:
                encoded[prompt.messages] = self.speech.encode(prompt.messages)
            ids = encoded[prompt.messages]
            if any(message.images for message in prompt.messages):
                failed[row] = _failure("the prompt has images; token ids alone cannot carry them to a vLLM server")
            elif len(ids) > limit:
                failed[row] = _failure(f"prompt has {len(ids)} tokens, the limit is {limit}; shorten the harness")
            else:
                questions.append(Question(row, ids, row_key(sampling, prompt) % 2**SEED_BITS))
        return failed, questions

    def _client(self) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        import httpx

        token = os.environ.get(self.config.token_env, "") if self.config.token_env else ""
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(self.config.timeout_s, connect=min(10.0, self.config.timeout_s)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # replicas are addressed directly
        )

    async def _ready(self, client: httpx.AsyncClient | None = None) -> list[Replica]:
        """Every replica, checked to hold the weights; one that does not is closed and says why."""
        if client is None:
            async with self._client() as opened:
                return await self._ready(opened)
        replicas = [Replica(url) for url in self.config.urls]
        await asyncio.gather(*(self._prepare(client, replica) for replica in replicas))
        return replicas

    async def _prepare(self, client: httpx.AsyncClient, replica: Replica) -> None:
        try:
            names = await self._names(client, replica)
            if self.base_id not in names:
                replica.closed = (
                    f"serves {sorted(names)}, not the base {self.base_id}; start it with --served-model-name "
                    f"{self.base_id}, if it is that model"
                )
            elif self._adapter is not None:
                await self._load(client, replica, names)
        except (ReplicaFault, RequestRefused) as error:
            replica.closed = str(error)

    async def _load(self, client: httpx.AsyncClient, replica: Replica, names: dict[str, str]) -> None:
        """Load the adapters under their policy id, reload them where another folder stands behind the name."""
        wanted, mine = str(self._adapter), self._loaded[replica.url]
        if names.get(self.policy_id) != wanted:
            body = {"lora_name": self.policy_id, "lora_path": wanted, "load_inplace": self.policy_id in names}
            await self._post(client, replica, "/v1/load_lora_adapter", body)
            names = await self._names(client, replica)
            if names.get(self.policy_id) != wanted:
                raise ReplicaFault(f"took the adapters of {self.policy_id} and does not list them")
        mine.add(self.policy_id)
        for name in sorted(mine - {self.policy_id}):
            if name in names:
                await self._post(client, replica, "/v1/unload_lora_adapter", {"lora_name": name})
            mine.discard(name)

    async def _names(self, client: httpx.AsyncClient, replica: Replica) -> dict[str, str]:
        """Models that a replica serves, with the folder behind each."""
        limit_s = min(LIST_TIMEOUT_S, self.config.timeout_s)
        listed = await get(client, replica.url, "/v1/models", timeout_s=limit_s)
        cards = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
            raise ReplicaFault("/v1/models lists no models; this is no vLLM server")
        return {str(card.get("id")): str(card.get("root") or "") for card in cards}

    async def _post(self, client: httpx.AsyncClient, replica: Replica, path: str, body: dict[str, Any]) -> None:
        await post(client, replica.url, path, body, timeout_s=self.config.timeout_s)


def _said(replicas: Sequence[Replica]) -> str:
    return "; ".join(f"{replica.url}: {replica.closed}" for replica in replicas)


def _failure(error: str) -> Generation:
    return Generation(text="", finish_reason="error", error=error)


def _ignore(count: int) -> None:
    """The progress of callers that ask for none."""
