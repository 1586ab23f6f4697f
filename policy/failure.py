"""Failures as data: what a training process tells its owner, and the exception that the owner raises. Torch-free."""

from __future__ import annotations

import traceback

import memory.errors as store_errors
from harness.errors import BoundaryError, UserError
from harness.records import Boundary, Record
from memory.errors import StoreError
from policy import errors as policy_errors
from policy.errors import PolicyError, TrainerFailed, TrainerOutOfMemory

_MEMORY_WORDS = (
    "out of memory", "outofmemory", "memoryerror", "can't allocate memory", "cannot allocate memory", "bad_alloc",
    "failed to map segment",
)  # fmt: skip
_MEMORY_ADVICE = (
    "lower micro_batch_size or the policy's batch_size, set policy.gradient_checkpointing, or give the trainer "
    "more memory (executor.memory_limit_mb, a larger machine), and resume"
)
_TRACEBACK_LINES = 12
_PLAIN = (Exception.__init__, RuntimeError.__init__, ValueError.__init__)
"""Constructors that take the message alone."""


class Failure(Record):
    """One typed failure on its way between processes."""

    error: str
    """Name of the exception's class."""
    boundary: Boundary
    message: str
    trace: str = ""
    """Last lines of the traceback, for a failure that has no type of its own."""


def describe(error: BaseException) -> Failure:
    """A failure of training as data.

    Args:
        error: what training raised. Want of memory, also where the engine or a loader met it first, becomes
            :class:`TrainerOutOfMemory`, and what is no typed failure of this program :class:`TrainerFailed`.
    """
    words = f"{type(error).__name__}: {error}"
    if is_about_memory(words):
        message = f"the trainer ran out of memory; got {words[:400]}; {_MEMORY_ADVICE}"
        return Failure(error=TrainerOutOfMemory.__name__, boundary="trainer", message=message)
    if type(error).__name__ in _known() and not isinstance(error, TrainerFailed):
        boundary: Boundary = getattr(error, "boundary", "trainer")
        return Failure(error=type(error).__name__, boundary=boundary, message=str(error))
    lines = "".join(traceback.format_exception(error)).splitlines()
    message = f"training failed; got {words}; expected no exception; see the traceback"
    return Failure(
        error=TrainerFailed.__name__, boundary="trainer", message=message, trace="\n".join(lines[-_TRACEBACK_LINES:])
    )


def is_about_memory(words: str) -> bool:
    """Whether a library's message says that memory ran out; they have no common type for it."""
    return any(word in words.lower() for word in _MEMORY_WORDS)


def rebuild(failure: Failure) -> Exception:
    """The exception that a failure stands for, of the class it had."""
    if failure.error == BoundaryError.__name__:
        return BoundaryError(failure.boundary, failure.message.removeprefix(f"{failure.boundary}: "))
    error = _known().get(failure.error, TrainerFailed)(failure.message)
    if failure.trace:
        error.add_note(failure.trace)
    return error


def _known() -> dict[str, type[Exception]]:
    """Exceptions that are built from their message alone, by class name."""
    found = [*vars(policy_errors).values(), *vars(store_errors).values()]
    typed = [kind for kind in found if isinstance(kind, type) and issubclass(kind, (PolicyError, StoreError))]
    known: dict[str, type[Exception]] = {kind.__name__: kind for kind in typed if kind.__init__ in _PLAIN}
    return known | {UserError.__name__: UserError, BoundaryError.__name__: BoundaryError}
