"""Ask a language model for a typed answer that also passes a role's own checks.

:func:`agents.llm.structured.structured` makes an answer fit its schema; here the role checks what
the answer says against the data, and a wrong one goes back with the exact errors, a bounded number
of times. A provider that gives no reply at all is an infrastructure failure and is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from pydantic import BaseModel

from agents.llm.config import RULES
from agents.llm.failure import StructuredFailed
from agents.records import Refusal
from harness.records import Message, Usage

if TYPE_CHECKING:  # langchain-core is loaded only by runs whose roles use a model
    from agents.llm.client import LiteLlmChat

RoleModel: TypeAlias = "LiteLlmChat"
T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True)
class Answer(Generic[T]):
    """A checked answer, or None after the last try, with every answer that was sent back."""

    value: T | None
    refusals: tuple[Refusal, ...]
    usage: Usage


def backend_name(model: RoleModel | None) -> str:
    """``rules``, or the model's LiteLLM string."""
    return model.config.model if model is not None else RULES


def total_usage(usages: Iterable[Usage]) -> Usage:
    """The sum of several calls."""
    listed = list(usages)
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in listed),
        completion_tokens=sum(usage.completion_tokens for usage in listed),
        cost_usd=sum(usage.cost_usd for usage in listed),
    )


async def ask_checked(
    model: RoleModel,
    messages: Sequence[Message],
    schema: type[T],
    *,
    purpose: str,
    check: Callable[[T], Awaitable[Sequence[str]]],
    max_tries: int = 3,
    replicate: int = 0,
) -> Answer[T]:
    """Ask until ``check`` finds nothing wrong, at most ``max_tries`` times.

    Args:
        model: the client.
        messages: the chat.
        schema: the answer's form.
        purpose: why; part of every call's key.
        check: returns one exact error per fault; none accepts the answer.
        max_tries: well-formed answers asked for at most.
        replicate: keeps repeated independent answers apart.

    Returns:
        The accepted answer; without one ``value`` is None and ``refusals`` says why, answer by answer.

    Raises:
        ModelCallFailed: the provider gave no reply.
        BudgetExhausted: a limit of the role or the run is reached.
    """
    from agents.llm.structured import structured

    chat = list(messages)
    refusals: list[Refusal] = []
    usages: list[Usage] = []
    for number in range(1, max_tries + 1):
        try:
            reply = await structured(model, chat, schema, purpose=purpose, replicate=replicate)
        except StructuredFailed as failure:
            usages += failure.usages
            refusals.append(Refusal(answer=None, errors=(str(failure),)))
            break
        usages += [paid.usage for paid in reply.replies]
        errors = tuple(await check(reply.value))
        if not errors:
            return Answer(reply.value, tuple(refusals), total_usage(usages))
        refusals.append(Refusal(answer=reply.value.model_dump(mode="json"), errors=errors))
        chat += [
            Message(role="assistant", content=reply.value.model_dump_json()),
            Message(role="user", content=_feedback(errors, number, max_tries)),
        ]
    return Answer(None, tuple(refusals), total_usage(usages))


def _feedback(errors: Sequence[str], number: int, max_tries: int) -> str:
    listed = "\n".join(f"- {error}" for error in errors)
    return f"Answer {number} of {max_tries} was not accepted:\n{listed}\nAnswer again in full and mend exactly this."
