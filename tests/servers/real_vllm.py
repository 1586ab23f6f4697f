"""Start real vLLM servers from an environment of their own: ``VLLM_VENV``, else ``.venv-vllm`` (see make test-vllm)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 300


class RealVllm:
    """One server process with all its children."""

    def __init__(self, model, name, log):
        python = Path(os.environ.get("VLLM_VENV") or ROOT / ".venv-vllm") / "bin" / "python"
        if not python.exists():
            pytest.skip(f"no vLLM environment at {python}; run make test-vllm, or set VLLM_VENV")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        command = [
            str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", name,
            "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
            "--max-model-len", "512", "--max-num-seqs", "16", "--enable-lora", "--max-lora-rank", "16",
            "--max-loras", "2",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str((os.cpu_count() or 1) - 1),
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        self._wait()

    def _wait(self):
        ends = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < ends and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).read()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        self.signal(signal.SIGKILL)
        pytest.fail(f"vLLM did not start; the end of {self.log}:\n{Path(self.log).read_text()[-3000:]}")

    def signal(self, number):
        """Send a signal to the server and its children."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

    def close(self):
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self._process.wait()
