"""The key of a row's random stream. Torch-free, so that engines without weights seed their rows alike."""

from __future__ import annotations

import hashlib

from harness.protocols import Prompt
from harness.records import Sampling


def row_key(sampling: Sampling, prompt: Prompt) -> int:
    """128-bit key of a row's random stream: both seeds and the last message, which names the task.

    The rest of the prompt, the harness, is left out on purpose: two harnesses compared under the same
    seeds then meet the same uniforms, which takes sampling noise out of their difference.
    """
    last = prompt.messages[-1].content if prompt.messages else ""
    payload = f"{sampling.seed}\x1f{prompt.seed}\x1f{last}".encode()
    return int.from_bytes(hashlib.sha256(payload).digest()[:16], "big")
