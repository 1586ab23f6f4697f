"""An OpenAI-compatible chat server that misbehaves to a plan; standard library only.

Run it as a process of its own: ``python tests/servers/misbehaving.py`` prints ``listening <port>`` and serves on
127.0.0.1. ``PUT /plan`` sets ``{"steps": [...], "reject": {...}}`` and clears the log; ``GET /log`` returns what was
asked. Each chat request takes the next step; the last step repeats; ``"after": 0.1`` delays a step by so many seconds.
A step is one of

* ``{"do": "reply", "text": "...", "finish_reason": "stop"}``; ``"usage": null`` leaves the token counts out
* ``{"do": "status", "code": 429, "headers": {"Retry-After": "1"}, "message": "..."}``
* ``{"do": "refusal", "text": "..."}`` sends the ``refusal`` field of OpenAI's structured outputs
* ``{"do": "stall", "seconds": 30}`` accepts the request and says nothing
* ``{"do": "drip", "seconds": 30}`` sends headers, then one byte at a time
* ``{"do": "garbage"}`` answers 200 with a body that is not JSON
* ``{"do": "hollow"}`` answers 200 with JSON that has no choices
* ``{"do": "hang_up"}`` closes the connection without an answer

``reject`` maps a ``response_format`` form (``json_schema``, ``json_object_schema``, ``json_object``) to the status
with which it is refused; a refusal takes no step.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Plan:
    """What the server will do next and what it was asked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.load({"steps": []})

    def load(self, body: dict[str, Any]) -> None:
        with self.lock:
            self.steps: list[dict[str, Any]] = list(body["steps"])
            self.reject: dict[str, int] = dict(body.get("reject", {}))
            self.log: list[dict[str, Any]] = []
            self.active = 0
            self.peak = 0

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Count a request as open; it ends before the answer is sent, or the next one would overlap with it."""
        with self.lock:
            self.active += 1
            self.peak = max(self.peak, self.active)
        yield
        with self.lock:
            self.active -= 1

    def take(self) -> dict[str, Any]:
        if not self.steps:
            return {"do": "status", "code": 418, "message": "the plan has no step for this request"}
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


PLAN = Plan()


def format_form(body: dict[str, Any]) -> str:
    """The form of ``response_format`` in a request: one of the ladder's rungs."""
    response_format = body.get("response_format")
    if response_format is None:
        return "prompt"
    kind = str(response_format.get("type"))
    return "json_object_schema" if kind == "json_object" and "schema" in response_format else kind


def completion(message: dict[str, Any], finish_reason: str, model: str) -> dict[str, Any]:
    """An OpenAI chat completion of 11 prompt tokens and 7 completion tokens."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent; ``GET /log`` is the log."""

    def send(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, code: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self.send(code, json.dumps(value).encode(), headers)

    def send_error_body(self, code: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.send_json(code, {"error": {"message": message, "type": "error", "code": str(code)}}, headers)

    def read_json(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self) -> None:  # noqa: N802
        self.send_json(200, {"requests": PLAN.log, "peak": PLAN.peak})

    def do_PUT(self) -> None:  # noqa: N802
        PLAN.load(self.read_json())
        self.send_json(200, {})

    def do_POST(self) -> None:  # noqa: N802
        body = self.read_json()
        form = format_form(body)
        entry = {"at": time.monotonic(), "form": form, "body": body, "key": self.headers.get("Authorization")}
        with PLAN.lock:
            PLAN.log.append(entry)
            code = PLAN.reject.get(form)
            step = PLAN.take() if code is None else {}
        try:
            with PLAN.open_request():
                time.sleep(step.get("after", 0))
            if code is not None:
                self.send_error_body(code, f"response_format {form} is not supported by this model")
            else:
                self.act(step, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def act(self, step: dict[str, Any], body: dict[str, Any]) -> None:
        """Do one step of the plan."""
        match step["do"]:
            case "reply":
                answer = completion({"content": step["text"]}, step.get("finish_reason", "stop"), body["model"])
                self.send_json(200, answer | ({"usage": step["usage"]} if "usage" in step else {}))
            case "refusal":
                self.send_json(200, completion({"content": None, "refusal": step["text"]}, "stop", body["model"]))
            case "status":
                self.send_error_body(step["code"], step.get("message", "scripted"), step.get("headers"))
            case "garbage":
                self.send(200, b"<html>502 upstream</html>")
            case "hollow":
                self.send_json(200, {"id": "x", "object": "chat.completion", "choices": []})
            case "stall":
                time.sleep(step["seconds"])
                self.close_connection = True
            case "drip":
                self.drip(step["seconds"])
            case "hang_up":
                self.close_connection = True
            case other:
                raise ValueError(f"unknown step {other!r}")

    def drip(self, seconds: float) -> None:
        """Send a body of spaces, one every 50 ms, so that a read timeout alone never fires."""
        count = int(seconds / 0.05)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(count + 2))
        self.end_headers()
        for _ in range(count):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)
        self.wfile.write(b"{}")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"listening {server.server_address[1]}", flush=True)
    server.serve_forever()
