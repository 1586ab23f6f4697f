"""A model that plays a script: each call must hold the words the script expects, or the test fails loudly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.llm.client import LiteLlmChat
from agents.llm.config import RoleModelConfig
from agents.llm.record import ModelReply
from harness.records import Message, Usage


class UnseenPrompt(AssertionError):
    """The model was asked something that the script does not hold."""


class ScriptedModel(LiteLlmChat):
    """Answers from a list of (words that the last turn must hold, reply)."""

    script: list[tuple[str, str]]
    prompts: list[list[Message]] = []

    async def complete(self, messages: Sequence[Message], *, purpose: str, replicate: int = 0, **_: Any) -> ModelReply:
        self.prompts.append(list(messages))
        if not self.script:
            raise UnseenPrompt(f"the script is over; asked for {purpose}: {messages[-1].content[-300:]}")
        words, reply = self.script.pop(0)
        if words not in messages[-1].content:
            raise UnseenPrompt(f"expected {words!r} in the last turn of {purpose}; got {messages[-1].content[-2000:]}")
        usage = Usage(prompt_tokens=100, completion_tokens=10, cost_usd=0.001)
        return ModelReply(text=reply, model=self.config.model, usage=usage)


def scripted(role: str, *script: tuple[str, str]) -> ScriptedModel:
    """A scripted model for one role; 100 prompt tokens, 10 completion tokens and 0.001 USD a call."""
    config = RoleModelConfig(model="openai/scripted", api_key_env=None)
    return ScriptedModel(config=config, role=role, script=list(script), prompts=[])
