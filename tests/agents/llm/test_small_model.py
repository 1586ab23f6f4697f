"""A real small model behind ``transformers serve``; needs the serving extra and a converted SmolLM2 folder."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from agents.llm.client import LiteLlmChat
from agents.llm.config import RoleModelConfig
from agents.llm.failure import StructuredFailed
from agents.llm.structured import structured
from harness.records import Message

pytestmark = pytest.mark.slow

MODEL = Path(os.environ.get("COHELIX_SMOLLM2_DIR", "missing"))
SERVE = Path(__file__).parents[3] / "examples" / "smollm2" / "serve.py"


class Capital(BaseModel):
    country: str
    capital: str


QUESTION = Message(role="user", content="Name the capital of France.")
EXAMPLE = (
    Message(role="system", content="You answer in JSON."),
    Message(role="user", content="Name the capital of Italy."),
    Message(role="assistant", content='{"country": "Italy", "capital": "Rome"}'),
)


@pytest.fixture(scope="module")
def chat() -> Iterator[LiteLlmChat]:
    if not (MODEL / "config.json").is_file() or importlib.util.find_spec("fastapi") is None:
        pytest.skip("set COHELIX_SMOLLM2_DIR to a folder of examples/smollm2/convert.py; install transformers[serving]")
    process = subprocess.Popen([sys.executable, str(SERVE), str(MODEL)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        _, model, _, api_base = process.stdout.readline().split()
        config = RoleModelConfig(model=model, api_base=api_base, max_tokens=64, timeout_s=60)
        yield LiteLlmChat(config=config, role="teacher")
    finally:
        process.terminate()
        process.wait(timeout=20)


def test_a_worked_example_gives_a_typed_answer(chat: LiteLlmChat):
    answer = asyncio.run(structured(chat, (*EXAMPLE, QUESTION), Capital, purpose="example"))
    assert answer.value == Capital(country="France", capital="Paris")
    assert answer.replies[-1].usage.completion_tokens > 0 and answer.replies[-1].is_unpriced


def test_a_model_too_small_to_obey_a_schema_fails_with_names_not_with_nonsense(chat: LiteLlmChat):
    with pytest.raises(StructuredFailed) as caught:
        asyncio.run(structured(chat, (QUESTION,), Capital, purpose="bare"))
    assert {fault.kind for fault in caught.value.faults} <= {
        "invalid_json",
        "truncated_json",
        "validation_error",
        "schema_echo",
    }
    assert len(caught.value.faults) == 4  # the reply and three repairs
