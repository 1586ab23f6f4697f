"""The boundary to a suite from another distribution: what it raises and what it returns is checked and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from evals.suites.base import Play, Suite, ValidationReport
from harness.errors import BoundaryError, UserError
from harness.model import Harness
from harness.records import FinishReason, Scored, Split, Task, Unscored

T = TypeVar("T")


class GuardedSuite:
    """Another distribution's suite, whose failures are ``user_code`` and never a traceback."""

    def __init__(self, suite: Any, name: str) -> None:
        """Read the suite's name, family and fingerprint.

        Raises:
            BoundaryError: one of them is missing or is no text.
        """
        self._suite = suite
        self._label = f"suite {name!r}"
        self._tasks: dict[Split, tuple[Task, ...]] = {}
        self.name = self._text("name")
        self.family = self._text("family")
        self.fingerprint = self._text("fingerprint")

    def tasks(self, *, split: Split) -> tuple[Task, ...]:
        """The tasks of one split; asked for once, so that their order cannot change."""
        if split not in self._tasks:
            tasks = self._many("tasks", Task, lambda: self._suite.tasks(split=split))
            strays = [task.task_id for task in tasks if task.split != split]
            if strays:
                raise self._wrong("tasks", f"tasks {strays[:3]} of another split among those of {split!r}")
            seen = [task.task_id for task in tasks]
            if len(set(seen)) < len(seen):
                twice = sorted({one for one in seen if seen.count(one) > 1})
                raise self._wrong("tasks", f"ids {twice[:3]} twice in {split!r}")
            self._tasks[split] = tasks
        return self._tasks[split]

    def verify(
        self, task: Task, completion: str, *, finish_reason: FinishReason, token_count: int = 0
    ) -> Scored | Unscored:
        """Score one completion; what it raises passes, since every caller makes an attempt without a score of it."""
        verdict = self._suite.verify(task, completion, finish_reason=finish_reason, token_count=token_count)
        if not isinstance(verdict, Scored | Unscored):
            raise TypeError(f"verify returned a {type(verdict).__name__}; expected Scored or Unscored")
        return verdict

    def seed_harness(self) -> Harness:
        """The harness that a run starts from."""
        return self._one("seed_harness", Harness, self._suite_method("seed_harness"))

    def solve(self, task: Task, *, style: str) -> str:
        """A worked completion.

        Raises:
            ValueError: the suite's own word on an unknown style.
        """
        return self._one("solve", str, lambda: self._suite.solve(task, style=style), passing=ValueError)

    def playbook(self) -> tuple[Play, ...]:
        """Plays for the rules proposer."""
        return self._many("playbook", Play, self._suite_method("playbook"))

    def validate(self) -> ValidationReport:
        """The suite's own proof of its verifier."""
        return self._one("validate", ValidationReport, self._suite_method("validate"))

    def _suite_method(self, method: str) -> Callable[[], Any]:
        return lambda: getattr(self._suite, method)()

    def _text(self, name: str) -> str:
        value = self._call(name, lambda: getattr(self._suite, name))
        if not isinstance(value, str) or not value:
            raise self._wrong(name, f"{value!r}; expected some text")
        return value

    def _one(self, method: str, kind: type[T], call: Callable[[], Any], *, passing: type[Exception] = UserError) -> T:
        value = self._call(method, call, passing=passing)
        if not isinstance(value, kind):
            raise self._wrong(method, f"a {type(value).__name__}; expected a {kind.__name__}")
        return value

    def _many(self, method: str, kind: type[T], call: Callable[[], Any]) -> tuple[T, ...]:
        value = self._call(method, call)
        if not isinstance(value, tuple | list):
            raise self._wrong(method, f"a {type(value).__name__}; expected a tuple of {kind.__name__}")
        strangers = sorted({type(item).__name__ for item in value if not isinstance(item, kind)})
        if strangers:
            raise self._wrong(method, f"{strangers} among its items; expected {kind.__name__} alone")
        return tuple(value)

    def _call(self, method: str, call: Callable[[], Any], *, passing: type[Exception] = UserError) -> Any:
        try:
            return call()
        except (UserError, BoundaryError, passing):
            raise
        except Exception as error:  # the boundary to user code
            raise BoundaryError(
                "user_code", f"{self._label}: {method} raised {type(error).__name__}: {error}"
            ) from error

    def _wrong(self, method: str, got: str) -> BoundaryError:
        return BoundaryError("user_code", f"{self._label}: {method} gave {got}; correct the suite")


def guarded(suite: Any, name: str) -> Suite:
    """The suite behind its boundary."""
    return GuardedSuite(suite, name)  # type: ignore[return-value]  # Unscored is for callers that ask for it
