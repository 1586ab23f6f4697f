"""Improve a policy's weights and its harness together, and prove every step.

    from pathlib import Path
    import cohelix

    config = cohelix.load_config("configs/quickstart.yaml", ["seed=1"])
    result = cohelix.start(config, home=Path(".cohelix"))
    print(cohelix.report_run(Path(".cohelix"), result.run_id)["report"])

Names are imported when first used, so ``import cohelix`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphs.config import RunConfig
    from graphs.loading import load_config
    from graphs.runner import RunResult, resume, start
    from graphs.view import list_runs, report_run, trace_run

_HOMES = {
    "RunConfig": "graphs.config",
    "load_config": "graphs.loading",
    "start": "graphs.runner",
    "resume": "graphs.runner",
    "RunResult": "graphs.runner",
    "list_runs": "graphs.view",
    "trace_run": "graphs.view",
    "report_run": "graphs.view",
}

__all__ = ["RunConfig", "RunResult", "list_runs", "load_config", "report_run", "resume", "start", "trace_run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"cohelix has no {name!r}; it has {sorted(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)
