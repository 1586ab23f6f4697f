"""Training curves outside the store: which trackers, and where their files go. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from harness.errors import UserError

TENSORBOARD_FOLDER = "TENSORBOARD_LOGGING_DIR"
"""Environment variable of the transformers library; one that the user has set is left alone."""


@dataclass(frozen=True)
class Telemetry:
    """Trackers of one training block; they see its numbers and decide none."""

    report_to: tuple[str, ...] = ()
    """Trackers by their name in the transformers library."""
    folder: Path | None = None
    """Of event files; its name is the name of the run where a tracker asks for one."""

    @property
    def run_name(self) -> str | None:
        """Name of the block in a tracker."""
        return self.folder.name if self.folder is not None else None

    @contextmanager
    def placed(self) -> Iterator[None]:
        """While trackers are built: event files go to the folder, unless the user named another."""
        if not self.report_to or self.folder is None or TENSORBOARD_FOLDER in os.environ:
            yield
            return
        os.environ[TENSORBOARD_FOLDER] = str(self.folder)
        try:
            yield
        finally:
            del os.environ[TENSORBOARD_FOLDER]


NO_TELEMETRY = Telemetry()


def check_trackers(report_to: Sequence[str]) -> None:
    """Refuse trackers whose package is missing, before anything is trained.

    Args:
        report_to: names from ``policy.telemetry.report_to``; each is also the name of its package.

    Raises:
        UserError: a package is not installed; the message has the command that installs it.
    """
    missing = [name for name in report_to if find_spec(name) is None]
    if missing:
        raise UserError(
            f"policy.telemetry.report_to names {', '.join(missing)}",
            got="no such package installed",
            do=f"`pip install {' '.join(missing)}`, or take it out of report_to",
        )
