"""The two kinds of failure that a person reads: their own mistake, and a boundary that broke."""

from __future__ import annotations

from harness.records import Boundary


class UserError(Exception):
    """A mistake that the person who ran the command can mend; shown without a traceback, exit code 2."""

    def __init__(self, failed: str, *, got: str = "", expected: str = "", do: str = "") -> None:
        """Build the message *what failed; got X; expected Y; do Z*, leaving out empty parts."""
        parts = [failed]
        parts += [f"{word} {text}" for word, text in (("got", got), ("expected", expected), ("do:", do)) if text]
        super().__init__("; ".join(parts))


class BoundaryError(Exception):
    """An infrastructure failure that names where it happened; never a score."""

    def __init__(self, boundary: Boundary, failed: str) -> None:
        """Name the boundary (model call, engine, trainer, store, judge, user code) and what failed."""
        super().__init__(f"{boundary}: {failed}")
        self.boundary: Boundary = boundary


class SpendLimitReached(BoundaryError):  # noqa: N818 - the name says what happened
    """A call was refused because it could pass a hard limit; more of the same calls would be refused as well."""
