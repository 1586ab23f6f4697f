"""Serve a transformers model folder over OpenAI's protocol on 127.0.0.1.

A thin wrapper around ``transformers serve`` (``pip install 'transformers[serving]'``) which fills in what a laptop
wants: the loopback address, the CPU in float32, one thread, no network, and a free port that it prints once the server
answers::

    python examples/smollm2/serve.py /tmp/smollm2/model
    serving openai//tmp/smollm2/model at http://127.0.0.1:43127/v1

``transformers serve`` names a model by the path it was given; the client's model string is ``openai/`` and that path.
Stop it with Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

START_LIMIT_S = 180.0


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(model: Path, port: int, *, threads: int = 1) -> subprocess.Popen[bytes]:
    """Start the server as a process of its own; its log goes to standard error.

    Args:
        model: a folder with config, weights, tokenizer and chat template.
        port: where to listen on 127.0.0.1.
        threads: torch threads; more than there are free cores makes it slower, not faster.
    """
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    program = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model), *options]
    return subprocess.Popen(program, env=environment, stdout=sys.stderr)


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Return once the server answers.

    Raises:
        SystemExit: it ended, or did not answer in time.
    """
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with code {process.returncode}; its log above says why")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    process.terminate()
    raise SystemExit(f"the server did not answer within {START_LIMIT_S:g} s; its log above says how far it came")


def main() -> None:
    """Parse the command line, serve until told to stop."""
    parser = argparse.ArgumentParser(description="Serve a model folder over OpenAI's protocol on 127.0.0.1.")
    parser.add_argument("model", type=Path, help="the model folder, for example one written by convert.py")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    arguments = parser.parse_args()
    model = arguments.model.absolute()
    if not (model / "config.json").is_file():
        raise SystemExit(f"{model} has no config.json; expected a transformers model folder; make one with convert.py")
    port = arguments.port or free_port()
    process = start(model, port, threads=arguments.threads)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        wait_until_ready(process, port)
        print(f"serving openai/{model} at http://127.0.0.1:{port}/v1", flush=True)
        process.wait()
    except KeyboardInterrupt:
        pass
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
