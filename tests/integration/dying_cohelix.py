"""cohelix, but the process kills itself at a write chosen by the test: ``python dying_cohelix.py JSON arguments…``.

The JSON names the write (``at``), which one of them counts (``kind``, a prefix), the how many-th it is (``nth``,
from 1) and whether to die before or after it (``when``). SIGKILL: no handler, no cleanup, as the kernel would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

WRITES = {
    "ledger": ("memory.ledger", "Ledger", "record"),
    "traces": ("memory.traces", "Traces", "add"),
    "commit": ("memory.lineage", "Lineage", "commit"),
    "checkpoint": ("memory.lineage", "Lineage", "save_checkpoint"),
    "step": ("memory.steps", "Steps", "record"),
    "graph": ("langgraph.checkpoint.sqlite", "SqliteSaver", "put"),
    "graph_write": ("langgraph.checkpoint.sqlite", "SqliteSaver", "put_writes"),
    "run": ("memory.runs", "Runs", "create"),
}


def deadly(write: Callable[..., Any], die: dict[str, Any]) -> Callable[..., Any]:
    seen = 0

    def wrapped(*arguments: Any, **names: Any) -> Any:
        nonlocal seen
        if str(names.get("kind", "")).startswith(die.get("kind", "")):
            seen += 1
        elif die.get("kind"):
            return write(*arguments, **names)
        is_it = seen == die["nth"]
        if is_it and die["when"] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = write(*arguments, **names)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def main() -> None:
    from importlib import import_module

    die = json.loads(sys.argv.pop(1))
    module, owner, name = WRITES[die["at"]]
    kind = getattr(import_module(module), owner)
    setattr(kind, name, deadly(getattr(kind, name), die))
    from cohelix.cli import main as run

    run()


main()
