"""A terminal that outlives its reader."""

from __future__ import annotations

import os

from rich.console import Console


class PatientConsole(Console):
    """Rich ends the process with exit 1 when the reader leaves (``| head``); here what is left is thrown away."""

    def on_broken_pipe(self) -> None:
        """Print nothing more; the command, or the run, goes on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
