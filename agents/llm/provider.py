"""The only place that touches LiteLLM: one request, and a name for whatever went wrong with it."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

from pydantic import JsonValue

from agents.llm.config import RoleModelConfig
from agents.llm.failure import RETRYABLE, Fault, FaultKind, MissingApiKey
from harness.errors import UserError
from harness.records import FinishReason, Usage
from memory.redaction import Redactor

NO_KEY = "no-key"
"""Sent to a server of the user's own (``api_base``) when no key variable is named."""


@dataclass(frozen=True)
class RawReply:
    """One answered request."""

    text: str
    refusal: str
    finish_reason: FinishReason
    usage: Usage
    is_unpriced: bool
    is_usage_estimated: bool


@dataclass(frozen=True)
class AttemptFault:
    """One unanswered request."""

    fault: Fault
    is_permanent: bool
    retry_after_s: float | None = None


class MalformedResponse(Exception):  # noqa: N818 - caught one frame up and named there
    """A 200 whose body is no chat completion."""


@cache
def load_litellm() -> Any:
    """Import LiteLLM on first use (it takes seconds), offline price table, no banners."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_TELEMETRY", "False")
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    litellm.drop_params = False  # an unsupported response_format must raise, or the ladder would never know
    litellm.num_retries = None
    return litellm


def check_model(config: RoleModelConfig) -> None:
    """Refuse a model string that no provider answers to.

    Raises:
        UserError: LiteLLM knows no provider for the string.
    """
    litellm = load_litellm()
    try:
        litellm.get_llm_provider(config.model, api_base=config.api_base)
    except litellm.exceptions.BadRequestError:
        raise UserError(
            "no provider is known for a model string",
            got=repr(config.model),
            expected="provider/model, for example openai/gpt-4o",
            do="prefix the provider; a server of your own that speaks OpenAI's protocol is openai/NAME with api_base",
        ) from None


def find_key(config: RoleModelConfig) -> str | None:
    """The API key at the moment of the call; it is never kept.

    Raises:
        MissingApiKey: the variable named in ``api_key_env``, or the provider's own, is not set.
    """
    if config.api_key_env is not None:
        key = os.environ.get(config.api_key_env, "").strip()
        if not key:
            raise MissingApiKey(config.model, [config.api_key_env])
        return key
    if config.api_base is not None:
        return NO_KEY
    missing = load_litellm().validate_environment(config.model)["missing_keys"]
    if missing:
        raise MissingApiKey(config.model, sorted(missing))
    return None


async def send(
    config: RoleModelConfig, messages: Sequence[Mapping[str, JsonValue]], parameters: Mapping[str, JsonValue]
) -> RawReply:
    """Send one request and read one reply; LiteLLM's and the SDK's own retries are off.

    Args:
        config: model, server, timeouts, price.
        messages: chat messages in OpenAI's form.
        parameters: sampling, ``response_format`` and extras.

    Raises:
        MalformedResponse: the answer is no chat completion.
        Exception: whatever LiteLLM raises; :func:`classify` names it.
    """
    import httpx

    litellm = load_litellm()
    response = await litellm.acompletion(
        model=config.model,
        messages=[dict(message) for message in messages],
        api_base=config.api_base,
        api_key=find_key(config),
        timeout=httpx.Timeout(config.timeout_s, connect=config.connect_timeout_s),
        num_retries=0,
        max_retries=0,
        **parameters,
    )
    try:
        choice = response.choices[0]
        text = choice.message.content or ""
        refusal = str(getattr(choice.message, "refusal", None) or "")
    except (IndexError, AttributeError, TypeError) as error:
        raise MalformedResponse(f"the answer has no choices ({type(error).__name__})") from None
    if choice.finish_reason == "content_filter" and not refusal:
        refusal = "stopped by the provider's content filter"
    usage, is_estimated = _tokens(response, messages, text)
    cost_usd = _paid(config, response, usage)
    return RawReply(
        text=text,
        refusal=refusal,
        finish_reason="length" if choice.finish_reason == "length" else "stop",
        usage=usage.model_copy(update={"cost_usd": cost_usd or 0.0}),
        is_unpriced=cost_usd is None,
        is_usage_estimated=is_estimated,
    )


def estimate_tokens(messages: Sequence[Mapping[str, JsonValue]]) -> int:
    """An upper guess at the prompt's tokens: three bytes each, and eight per message for its frame."""
    return sum(8 + math.ceil(len(str(message.get("content", "")).encode()) / 3) for message in messages)


def price_usd(config: RoleModelConfig, prompt_tokens: int, completion_tokens: int) -> float | None:
    """What so many tokens cost, or None when neither the config nor LiteLLM's table has a price."""
    if config.price is not None:
        per_million = config.price.prompt_usd_per_million * prompt_tokens
        return (per_million + config.price.completion_usd_per_million * completion_tokens) / 1e6
    try:
        prompt, completion = load_litellm().cost_per_token(
            model=config.model, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
        )
    except Exception:  # LiteLLM raises bare errors of several kinds for a model without a price
        return None
    return float(prompt + completion)


def _paid(config: RoleModelConfig, response: Any, usage: Usage) -> float | None:
    if config.price is None:
        try:  # counts cached and reasoning tokens at their own price
            return float(load_litellm().completion_cost(completion_response=response, model=config.model))
        except Exception:  # as in price_usd
            return None
    return price_usd(config, usage.prompt_tokens, usage.completion_tokens)


def _tokens(response: Any, messages: Sequence[Mapping[str, JsonValue]], text: str) -> tuple[Usage, bool]:
    reported = getattr(response, "usage", None)
    prompt_tokens = int(getattr(reported, "prompt_tokens", 0) or 0)
    completion_tokens = int(getattr(reported, "completion_tokens", 0) or 0)
    if prompt_tokens > 0:
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens), False
    guess = Usage(prompt_tokens=estimate_tokens(messages), completion_tokens=math.ceil(len(text.encode()) / 3))
    return guess, True


def classify(error: Exception, config: RoleModelConfig) -> AttemptFault:
    """Name an error of :func:`send`, say whether a retry can help and how long the provider asks to wait.

    408, 409, 425, 429 and 5xx are transient, other 4xx are permanent, and so is a 429 for a used-up quota.
    """
    status = getattr(error, "status_code", None)
    said = str(error) or (f"no whole reply within {config.timeout_s:g} s" if isinstance(error, TimeoutError) else "")
    detail = _redact(f"{type(error).__name__}: {said}", config)
    kind = _kind(error, status, detail)
    quota = kind == "rate_limited" and "insufficient_quota" in detail
    fault = Fault(kind=kind, detail=detail, status_code=status if isinstance(status, int) else None)
    return AttemptFault(fault, is_permanent=quota or kind not in RETRYABLE, retry_after_s=_retry_after_s(error))


def _kind(error: Exception, status: object, detail: str) -> FaultKind:
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, MalformedResponse) or "Expecting value" in detail:
        return "malformed_response"
    if "ContextWindowExceededError" in names:
        return "context_overflow"
    if "ContentPolicyViolationError" in names:
        return "refusal"
    if isinstance(error, TimeoutError) or "Timeout" in names or status == 408:
        return "timeout"
    if status == 429:
        return "rate_limited"
    if status in (401, 403):
        return "authentication"
    if status == 404:
        return "not_found"
    if "Connection error" in detail or "APIConnectionError" in names or isinstance(error, OSError):
        return "connection_failed"
    if isinstance(status, int) and (status >= 500 or status in (409, 425)):
        return "server_error"
    if isinstance(status, int) and status >= 400:
        return "bad_request"
    return "malformed_response"  # a fault inside LiteLLM while it read the answer


def _redact(text: str, config: RoleModelConfig) -> str:
    """Remove keys from a provider's message (some quote them) and cut it to a readable length."""
    own_key = os.environ.get(config.api_key_env or "", "").strip()
    text = Redactor((own_key,)).text(Redactor.from_environment().text(text))
    return text if len(text) <= 600 else f"{text[:600]}…"


def _retry_after_s(error: Exception) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after-ms")
    if value is not None and _is_number(value):
        return float(value) / 1000
    value = headers.get("retry-after")
    if value is None:
        return None
    if _is_number(value):
        return max(0.0, float(value))
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False
