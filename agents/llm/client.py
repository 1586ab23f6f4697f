"""One chat model for every provider: LiteLLM underneath, langchain-core's interface on top.

Because it is a langchain-core chat model, callbacks, LangSmith and OpenTelemetry tracing and LangGraph's message stream
see every call. What happens in a call is in ``agents/llm/call.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import ConfigDict, Field, JsonValue

from agents.llm.call import Caller, ModelServices, request_of
from agents.llm.config import RoleModelConfig
from agents.llm.provider import find_key
from agents.llm.record import ModelReply
from harness.errors import UserError
from harness.records import Message


class LiteLlmChat(BaseChatModel):
    """A chat model behind one LiteLLM string, for one role."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: RoleModelConfig
    role: str
    services: ModelServices = Field(default_factory=ModelServices, exclude=True, repr=False)
    cache: bool = Field(default=False, exclude=True)
    """Off: langchain's own cache knows neither purpose nor replicate and would collapse independent calls."""

    def model_post_init(self, context: Any, /) -> None:
        """Refuse now what can only fail later: the rules backend, or a key variable that is not set."""
        super().model_post_init(context)
        if self.config.is_rules:
            raise UserError(
                f"role {self.role} has no language model", got="model 'rules'", expected="a LiteLLM model string"
            )
        if self.config.api_key_env is not None:
            find_key(self.config)
        self.services.accounts.limit(self.role, self.config.budget)
        self.services.throttle.limit(self.config.server, self.config.concurrency)

    @property
    def _llm_type(self) -> str:
        return "cohelix-litellm"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.config.model, "api_base": self.config.api_base, "role": self.role}

    @property
    def model_key(self) -> str:
        """Model string and server: what the working rung is remembered by."""
        return f"{self.config.model}@{self.config.api_base or 'default'}"

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        purpose: str,
        replicate: int = 0,
        response_format: Mapping[str, JsonValue] | None = None,
        max_attempts: int | None = None,
    ) -> ModelReply:
        """Ask once; a recorded reply to the same call is returned without asking.

        Args:
            messages: the chat so far.
            purpose: why the call is made; part of its key.
            replicate: keeps repeated independent calls apart; part of its key.
            response_format: OpenAI's parameter of that name, passed on as it is.
            max_attempts: requests at most; None takes the config's.

        Raises:
            ModelCallFailed: no reply within the allowed attempts, or a permanent refusal.
            BudgetExhausted: the call could pass a hard limit; nothing was sent.
            UserError: a key is missing, or a limit cannot bind this model.
        """
        chat = [{"role": message.role, "content": message.content} for message in messages]
        trace = {"role": self.role, "purpose": purpose, "replicate": replicate}
        answer = await self.ainvoke(
            chat,
            {"run_name": f"{self.role}:{purpose}", "metadata": trace},
            purpose=purpose,
            replicate=replicate,
            response_format=response_format,
            max_attempts=max_attempts,
        )
        return ModelReply.model_validate(answer.response_metadata["cohelix"])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        *,
        purpose: str = "chat",
        replicate: int = 0,
        response_format: Mapping[str, JsonValue] | None = None,
        max_attempts: int | None = None,
        **unknown: Any,
    ) -> ChatResult:
        if unknown:
            raise TypeError(f"got call parameters {sorted(unknown)}; expected none; put them in config.extra")
        request = request_of(
            self.config,
            convert_to_openai_messages(messages),
            purpose=purpose,
            replicate=replicate,
            response_format=response_format,
            stop=stop,
            max_attempts=max_attempts,
        )
        reply = await Caller(self.config, self.role, self.services).answer(request)
        prompt, completion = reply.usage.prompt_tokens, reply.usage.completion_tokens
        message = AIMessage(
            content=reply.text,
            usage_metadata=UsageMetadata(
                input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion
            ),
            response_metadata={
                "model_name": self.config.model,
                "finish_reason": reply.finish_reason,
                "cohelix": reply.model_dump(mode="json"),
            },
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        """Answer outside an event loop; inside one, call ``ainvoke``."""
        return asyncio.run(self._agenerate(messages, stop, None, **kwargs))
