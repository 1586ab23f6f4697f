"""Ask a served model one structured question through cohelix's own client and print every call.

    python examples/smollm2/ask.py openai//tmp/smollm2/model http://127.0.0.1:43127/v1

Both arguments are printed by ``serve.py``; any LiteLLM model string will do, with or without a server of your own.
"""

from __future__ import annotations

import argparse
import asyncio

from pydantic import BaseModel, Field

from agents.llm.call import ModelServices
from agents.llm.client import LiteLlmChat
from agents.llm.config import RoleModelConfig
from agents.llm.failure import ModelCallFailed
from agents.llm.record import CallRecord, StructuredRecord
from agents.llm.structured import structured
from harness.records import Message


class Capital(BaseModel):
    """The answer that is asked for."""

    country: str = Field(description="name of the country")
    capital: str = Field(description="name of its capital city")


QUESTION = (
    Message(role="system", content="You answer in JSON."),
    Message(role="user", content="Name the capital of Italy."),
    Message(role="assistant", content='{"country": "Italy", "capital": "Rome"}'),
    Message(role="user", content="Name the capital of France."),
)
"""A model of 135 M parameters follows a worked example, not an instruction."""


def show(record: CallRecord | StructuredRecord) -> None:
    """Print one record of the client's sink."""
    faults = ", ".join(f"{fault.rung}:{fault.kind}" if fault.rung else fault.kind for fault in record.faults) or "none"
    if isinstance(record, StructuredRecord):
        print(f"answer   rung {record.rung}, repairs {record.repairs}, faults {faults}, valid {record.is_valid}")
        return
    form = record.parameters.get("response_format")
    kind = form["type"] if isinstance(form, dict) else "no format"
    tokens = f"{record.usage.prompt_tokens}+{record.usage.completion_tokens} tokens"
    print(f"call     {kind}, {tokens}, {record.latency_s:.1f} s, retries {record.retries}, faults {faults}")
    print(f"         reply: {record.reply!r}")


async def ask(model: str, api_base: str | None, api_key_env: str | None) -> int:
    """Ask, print, and return the exit code."""
    services = ModelServices(sink=show)
    config = RoleModelConfig(model=model, api_base=api_base, api_key_env=api_key_env, max_tokens=96, timeout_s=120)
    chat = LiteLlmChat(config=config, role="teacher", services=services)
    try:
        answer = await structured(chat, QUESTION, Capital, purpose="example")
    except ModelCallFailed as failure:
        print(f"failed   {failure}")
        return 1
    totals = services.accounts.totals()
    print(f"value    {answer.value!r}")
    print(f"account  {totals.calls} calls, {totals.tokens} tokens, {totals.cost_usd:.4f} USD")
    print(f"         calls without a known price: {totals.unpriced_calls}")
    return 0


def main() -> None:
    """Parse the command line and ask."""
    parser = argparse.ArgumentParser(description="Ask one structured question through cohelix's client.")
    parser.add_argument("model", help="a LiteLLM model string")
    parser.add_argument("api_base", nargs="?", help="URL of a server of your own")
    parser.add_argument("--api-key-env", help="NAME of the environment variable that holds the key")
    arguments = parser.parse_args()
    raise SystemExit(asyncio.run(ask(arguments.model, arguments.api_base, arguments.api_key_env)))


if __name__ == "__main__":
    main()
