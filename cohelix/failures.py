"""Turn an exception into what a person reads and the exit code, or None for a bug."""

from __future__ import annotations

from typing import NamedTuple

from harness.errors import BoundaryError, UserError

FOR_THE_USER = ("StoreError", "PolicyLoadError", "CheckpointError")
"""Failures that a person can mend, by class name, since importing their packages may load torch."""


class Interrupted(Exception):  # noqa: N818 - what happened, not an error
    """Ctrl-C in a run; the message says how to go on."""


class Told(NamedTuple):
    """Message for standard error, and exit code."""

    message: str
    exit_code: int


def explain(error: BaseException) -> Told | None:
    """The words for a failure that a person can act on; None lets the traceback through.

    Exit codes: 2 the user's mistake, 1 an infrastructure boundary, 130 Ctrl-C.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, Interrupted):
        return Told(str(error), 130)
    if isinstance(error, UserError) or names & set(FOR_THE_USER):
        return Told(str(error), 2)
    if isinstance(error, BoundaryError):
        return Told(str(error), 1)
    boundary = getattr(error, "boundary", None)
    if isinstance(boundary, str):
        return Told(f"{boundary}: {error}", 1)
    if isinstance(error, OSError):
        return Told(f"store: {error}; free space or mend the folder's permissions, then resume the run", 2)
    return None
