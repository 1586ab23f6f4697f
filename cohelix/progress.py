"""Show a run's events on standard error: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from cohelix.console import PatientConsole
from cohelix.failures import Interrupted
from graphs.events import Event

PLAIN_EVERY_S = 15.0
"""Seconds between progress lines where there is no terminal."""


class Watch:
    """A listener for :mod:`graphs.events`; also says how to go on after Ctrl-C."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._console = PatientConsole(stderr=True, highlight=False, soft_wrap=True)
        self._is_live = self._console.is_terminal
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._run_id = ""
        self._last_plain_s = 0.0

    def __enter__(self) -> Self:
        if self._is_live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_live:
            self._bar.stop()
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(self._how_to_resume("interrupted")) from None
        if error is not None and self._run_id:
            self._console.print(self._how_to_resume("the run stopped"), markup=False)

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._run_id = event.run_id
        if event.kind == "progress":
            self._advance(event)
            return
        if event.kind == "node_started":
            self._begin(event)
            return
        self._line(event)

    def _how_to_resume(self, happened: str) -> str:
        if not self._run_id:
            return happened
        where = shlex.quote(str(self._home))
        return f"{happened}; nothing finished is lost. Go on with: cohelix resume {self._run_id} --home {where}"

    def _begin(self, event: Event) -> None:
        self._last_plain_s = event.seconds
        if self._is_live:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(_title(event), total=None)

    def _advance(self, event: Event) -> None:
        if self._is_live and self._task is not None:
            self._bar.update(self._task, description=_title(event), completed=event.done, total=event.total or None)
        elif not self._is_live and event.seconds - self._last_plain_s >= PLAIN_EVERY_S:
            self._last_plain_s = event.seconds
            of = f"{event.done}/{event.total}" if event.total else str(event.done)
            self._console.print(f"[{event.seconds:6.1f} s] {_title(event)} {of}", markup=False)

    def _line(self, event: Event) -> None:
        self._console.print(f"[{event.seconds:6.1f} s] {_title(event)}", markup=False)


def _title(event: Event) -> str:
    where = f"round {event.round} " if event.round else ""
    node = f"{event.node}: " if event.node else ""
    return f"{where}{node}{event.text}".rstrip(": ")
