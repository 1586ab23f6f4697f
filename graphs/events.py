"""What a running graph tells whoever watches: the command line, the service, a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from harness.records import Record

EventKind = Literal["run_started", "node_started", "progress", "node_finished", "run_finished"]


class Event(Record):
    """One thing that happened in a run."""

    kind: EventKind
    run_id: str
    node: str = ""
    round: int = 0
    """Round the run is in, from 1; 0 before the loop."""
    text: str = ""
    """One line for a person."""
    done: int = 0
    """With ``progress``: units finished (attempts, rollout steps)."""
    total: int = 0
    """With ``progress``: units of this piece of work; 0 when unknown."""
    seconds: float = 0.0
    """Wall seconds since this sitting of the run began."""


Listener = Callable[[Event], None]
"""Takes events in order, on the thread that runs the graph."""


def ignore(event: Event) -> None:
    """A listener for runs that nobody watches."""
