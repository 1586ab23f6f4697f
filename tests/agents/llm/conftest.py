"""The misbehaving server as a process of its own, and clients that talk to it over a socket."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.llm.call import ModelServices
from agents.llm.client import LiteLlmChat
from agents.llm.config import RoleModelConfig
from agents.llm.record import CallRecord, StructuredRecord
from harness.records import Message
from memory.store import Store

SERVER = Path(__file__).parents[2] / "servers" / "misbehaving.py"
MESSAGES = (Message(role="system", content="Be brief."), Message(role="user", content="Say hello."))


class Server:
    """The other end of the socket: what it shall do, and what it was asked."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.api_base = f"{self.root}/v1"

    def plan(self, *steps: dict[str, Any], reject: dict[str, int] | None = None) -> None:
        body = json.dumps({"steps": steps, "reject": reject or {}}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.root}/plan", data=body, method="PUT")).read()

    def _log(self) -> Any:
        return json.load(urllib.request.urlopen(f"{self.root}/log"))

    @property
    def requests(self) -> list[dict[str, Any]]:
        return list(self._log()["requests"])

    @property
    def peak(self) -> int:
        """Most requests that were open at once."""
        return int(self._log()["peak"])


@pytest.fixture(scope="session")
def _server_process() -> Iterator[Server]:
    process = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Server(int(process.stdout.readline().split()[1]))
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def server(_server_process: Server) -> Server:
    _server_process.plan()
    return _server_process


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def records() -> list[CallRecord | StructuredRecord]:
    return []


@pytest.fixture
def services(records: list[CallRecord | StructuredRecord]) -> ModelServices:
    return ModelServices(sink=records.append)


ChatMaker = Callable[..., LiteLlmChat]


@pytest.fixture
def make_chat(server: Server, services: ModelServices) -> ChatMaker:
    """A client of the server with short waits; keyword arguments are config fields."""

    def make(role: str = "proposer", services: ModelServices = services, **fields: Any) -> LiteLlmChat:
        settings: dict[str, Any] = {
            "model": "openai/tiny",
            "api_base": server.api_base,
            "max_tokens": 50,
            "timeout_s": 1.0,
            "retry": {"max_attempts": 4, "backoff_base_s": 0.01},
        }
        return LiteLlmChat(config=RoleModelConfig.model_validate(settings | fields), role=role, services=services)

    return make


def reply(text: str, **extra: Any) -> dict[str, Any]:
    return {"do": "reply", "text": text, **extra}


def status(code: int, message: str = "scripted", **headers: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"do": "status", "code": code, "message": message, "headers": named}
