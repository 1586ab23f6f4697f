"""The misbehaving server as a test sees it: what it shall do next, and what it was asked."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Server:
    def __init__(self, port: int):
        self.root = f"http://127.0.0.1:{port}"

    def plan(self, *steps):
        body = json.dumps({"steps": steps}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.root}/plan", data=body, method="PUT")).read()

    @property
    def requests(self):
        return json.load(urllib.request.urlopen(f"{self.root}/log"))["requests"]


@contextmanager
def running() -> Iterator[Server]:
    command = [sys.executable, str(Path(__file__).with_name("misbehaving.py"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Server(int(process.stdout.readline().split()[1]))
    finally:
        process.kill()
        process.wait()
