"""Independent random streams from one root seed."""

from __future__ import annotations

import hashlib


def derive_seed(root: int, *names: str | int) -> int:
    """A 31-bit seed that is a function of the root and the names, for example ``("rl", 3)``."""
    text = "/".join(str(name) for name in (root, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
