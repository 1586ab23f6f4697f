"""Rollout engine over a chat model behind an API: prompted and evaluated, never trained. Torch-free.

There are no token ids and no log-probabilities, and nobody here can know which weights answered: the
policy's id is that of its model string and settings.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from harness.errors import SpendLimitReached, UserError
from harness.protocols import ChatModel, Prompt
from harness.records import Generation, Sampling, content_id
from policy.config import ApiPolicyConfig
from policy.engines.row_key import row_key

PURPOSE = "attempt"
"""Why the policy's model is called; part of every call's key."""
SEED_BITS = 31
"""Providers take seeds of 32 bits with a sign."""


def api_policy_id(config: ApiPolicyConfig) -> str:
    """Identity of an API policy: what decides the answers, so neither limits nor prices nor the key's variable."""
    decisive = config.model_dump(mode="json", include={"type", "model", "api_base", "omit", "extra"})
    return content_id(decisive, prefix="policy")


class ChatEngine:
    """A :class:`harness.protocols.RolloutEngine` over injected chat models.

    Args:
        open_model: gives the chat model for decoding settings; asked once for each distinct temperature, top_p and
            max_tokens.
        policy_id: identity of model string and settings.
        max_concurrency: calls in flight.
    """

    def __init__(self, open_model: Callable[[Sampling], ChatModel], policy_id: str, *, max_concurrency: int) -> None:
        self.policy_id = policy_id
        self._open_model = open_model
        self._max_concurrency = max_concurrency
        self._models: dict[tuple[float, float, int], ChatModel] = {}
        self._runner = asyncio.Runner()  # one loop for all calls: clients of a closed loop are of no use
        self._lock = threading.Lock()

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """Answer every prompt, in order.

        Args:
            prompts: rendered prompts; the row's seed keeps equal ones apart.
            sampling: decoding settings for all of them.
            progress: called with the number of prompts answered so far in this call.

        Returns:
            One generation per prompt; a failed call is a generation with ``finish_reason="error"``.

        Raises:
            SpendLimitReached: a limit allows no further call; replies that were paid are in the model's ledger.
            UserError: the model cannot be called at all, for example without its key.
        """
        if not prompts:
            return []
        with self._lock:
            return self._runner.run(self._generate(prompts, sampling, progress))

    def close(self) -> None:
        """End the event loop behind the calls."""
        self._runner.close()

    async def _generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Callable[[int], None] | None
    ) -> list[Generation]:
        key = (sampling.temperature, sampling.top_p, sampling.max_tokens)
        if key not in self._models:
            self._models[key] = self._open_model(sampling)
        model = self._models[key]
        places = asyncio.Semaphore(self._max_concurrency)
        stop: list[Exception] = []
        done = 0

        async def answer(prompt: Prompt) -> Generation:
            nonlocal done
            async with places:
                if stop:  # calls already in flight end, and their replies are kept; no new one begins
                    return _failure("not asked")
                try:
                    made = await self._ask(model, prompt, sampling)
                except (SpendLimitReached, UserError) as error:
                    stop.append(error)
                    return _failure(str(error))
            done += 1
            if progress is not None:
                progress(done)
            return made

        made = await asyncio.gather(*(answer(prompt) for prompt in prompts))
        if stop:
            raise stop[0]
        return list(made)

    async def _ask(self, model: ChatModel, prompt: Prompt, sampling: Sampling) -> Generation:
        if any(message.images for message in prompt.messages):
            return _failure("the prompt has images; policy.type=api sends text alone")
        try:
            reply = await model.complete(
                prompt.messages, purpose=PURPOSE, replicate=row_key(sampling, prompt) % 2**SEED_BITS
            )
        except (SpendLimitReached, UserError):
            raise
        except Exception as error:  # the model_call boundary: an attempt without a reply has no score
            return _failure(f"{type(error).__name__}: {error}")
        if reply.finish_reason == "error":
            return _failure("the model's reply is marked as an error")
        return Generation(
            text=reply.text, finish_reason=reply.finish_reason, policy_id=self.policy_id, usage=reply.usage
        )


def _failure(error: str) -> Generation:
    return Generation(text="", finish_reason="error", error=error)
