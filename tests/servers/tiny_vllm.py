"""A small real server with the part of vLLM's protocol that cohelix speaks; it answers with a real model.

Completions on token ids with per-request seeds, log-probabilities, adapters in PEFT's format loaded and dropped at
run time, chat completions. It runs in a thread of the test, on 127.0.0.1. A plan makes it misbehave: each completion
takes the next step, and once the plan is used up it answers rightly. A step is one of

* ``{"do": "answer"}``; ``"after": 0.2`` delays any step by so many seconds
* ``{"do": "status", "code": 503, "headers": {"Retry-After": "0.3"}}``
* ``{"do": "stall", "seconds": 5}`` accepts the request and says nothing
* ``{"do": "hang_up"}`` closes the connection in the middle of a body
* ``{"do": "garbage"}`` answers 200 with a body that is not JSON
* ``{"do": "change", "with": callable}`` answers 200 with a body that ``callable`` has changed in place
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from peft import PeftModel

from harness.records import Sampling
from policy.engines.decode import Batch, Decoder
from policy.engines.sampler import row_uniforms

BASE_ADAPTER = "base"


class TinyVllm:
    """One replica.

    Args:
        model: a causal language model; this server keeps it.
        tokenizer: with a chat template.
        name: under which the base is served.
        context: prompt and completion together, in tokens.
    """

    def __init__(self, model, tokenizer, name, context=512):
        self.tokenizer, self.name, self.context = tokenizer, name, context
        self.plan = []
        self.log = []
        self.adapters = {}
        self._model = model
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    @property
    def asked(self):
        """Completions asked for so far."""
        return [body for path, body in self.log if path == "/v1/completions"]

    def take(self):
        with self._lock:
            return self.plan.pop(0) if self.plan else {"do": "answer"}

    def load(self, name, path):
        with self._lock:
            if isinstance(self._model, PeftModel):
                if name in self._model.peft_config:
                    self._model.delete_adapter(name)
                self._model.load_adapter(path, adapter_name=name)
            else:
                self._model = PeftModel.from_pretrained(self._model, path, adapter_name=name)
            self._model.eval()
            self.adapters[name] = path

    def answer(self, ids, name, sampling, seed, stops):
        """Sampled ids and log-probabilities."""
        with self._lock, torch.inference_mode():
            if name in self.adapters:
                self._model.set_adapter(name)
                return self._decode(self._model, ids, sampling, seed, stops)
            if isinstance(self._model, PeftModel):
                with self._model.disable_adapter():
                    return self._decode(self._model, ids, sampling, seed, stops)
            return self._decode(self._model, ids, sampling, seed, stops)

    def _decode(self, model, ids, sampling, seed, stops):
        decoder = Decoder(model, self.tokenizer.pad_token_id, stops, True)
        made = decoder.decode(Batch([ids], [0], row_uniforms([seed], sampling.max_tokens)), None, sampling)
        count = int(made.lengths[0])
        return made.tokens[0, :count].tolist(), made.log_probabilities[0, :count].tolist()


def _handler(replica):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format, *args):
            pass

        def send(self, code, value, headers=None):
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(code)
            for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            cards = [{"id": replica.name, "root": "/base", "parent": None, "max_model_len": replica.context}]
            cards += [{"id": name, "root": path, "parent": replica.name} for name, path in replica.adapters.items()]
            self.send(200, {"object": "list", "data": cards})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            replica.log.append((self.path, body))
            try:
                self.act(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def act(self, body):
            if self.path == "/v1/load_lora_adapter":
                if body["lora_name"] in replica.adapters and not body.get("load_inplace"):
                    return self.send(400, {"error": {"message": "already loaded"}})
                replica.load(body["lora_name"], body["lora_path"])
                return self.send(200, b"Success")
            if self.path == "/v1/unload_lora_adapter":
                del replica.adapters[body["lora_name"]]
                return self.send(200, b"Success")
            if body["model"] not in {replica.name, *replica.adapters}:
                return self.send(404, {"error": {"message": f"The model {body['model']} does not exist."}})
            step = replica.take()
            time.sleep(step.get("after", 0))
            match step["do"]:
                case "status":
                    return self.send(step["code"], {"error": {"message": "scripted"}}, step.get("headers"))
                case "stall":
                    time.sleep(step["seconds"])
                    self.close_connection = True
                case "hang_up":
                    self.send_response(200)
                    self.send_header("Content-Length", "1000")
                    self.end_headers()
                    self.wfile.write(b'{"choices": [')
                    self.close_connection = True
                case "garbage":
                    return self.send(200, b"<html>upstream</html>")
                case "change":
                    return self.complete(body, step["with"])
                case "answer":
                    return self.complete(body, lambda answer: None)

        def complete(self, body, change):
            is_chat = self.path == "/v1/chat/completions"
            ids = body.get("prompt")
            if is_chat:
                text = replica.tokenizer.apply_chat_template(
                    body["messages"], tokenize=False, add_generation_prompt=True
                )
                ids = replica.tokenizer(text, add_special_tokens=False)["input_ids"]
            limit = body["max_tokens"]
            if len(ids) + limit > replica.context:
                said = f"maximum context length is {replica.context} tokens; you asked for {len(ids) + limit}"
                return self.send(400, {"error": {"message": said, "code": 400}})
            stops = tuple(body.get("stop_token_ids") or (replica.tokenizer.eos_token_id,))
            sampling = Sampling(
                temperature=body.get("temperature", 1.0), top_p=body.get("top_p") or 1.0, max_tokens=limit
            )
            tokens, scores = replica.answer(ids, body["model"], sampling, body["seed"], stops)
            finish = "stop" if tokens[-1] in stops else "length"
            text = replica.tokenizer.decode(tokens[:-1] if finish == "stop" else tokens)
            usage = {
                "prompt_tokens": len(ids), "completion_tokens": len(tokens), "total_tokens": len(ids) + len(tokens)
            }  # fmt: skip
            answer = {"id": "x", "created": 0, "model": body["model"], "usage": usage}
            if is_chat:
                message = {"role": "assistant", "content": text}
                answer["object"] = "chat.completion"
                answer["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
            else:
                answer["object"] = "text_completion"
                answer["choices"] = [{
                    "index": 0, "text": text, "finish_reason": finish, "token_ids": tokens, "prompt_token_ids": ids,
                    "logprobs": {"token_logprobs": scores},
                }]  # fmt: skip
            change(answer)
            self.send(200, answer)

    return Handler
