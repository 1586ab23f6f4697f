"""The proof of a route verifier on its own gold: accepted as it is, refused when corrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evals.suites.base import Agreement, Suite, ValidationReport
from evals.suites.route import TRANSFER_MARK, split_route
from harness.records import Task


def gold_routes(task: Task) -> list[str]:
    """Gold routes of a route task.

    Raises:
        ValueError: the task's gold is no list of routes.
    """
    if not isinstance(task.gold, list) or not task.gold or not all(isinstance(gold, str) for gold in task.gold):
        raise ValueError(f"reading gold failed; got {task.gold!r} in {task.task_id!r}; expected a list of routes")
    return [str(gold) for gold in task.gold]


def corrupt_routes(gold: str, stations: Sequence[str]) -> list[str]:
    """Wrong answers close to a gold route, for proving that a verifier refuses them.

    Args:
        gold: a gold route of at least two stations.
        stations: all station names of the map.
    """
    parts = gold.split("-")
    bare = [part.replace(TRANSFER_MARK, "") for part in parts]
    stranger = next((name for name in stations if name not in bare), "Nowhere")
    flipped = [*parts]
    flipped[1] = bare[1] if TRANSFER_MARK in parts[1] else parts[1] + TRANSFER_MARK
    wrong = [parts[:-1], parts[1:], [*parts, stranger], [stranger, *parts[1:]], [*parts, parts[-1]], flipped]
    if parts[::-1] != parts:
        wrong.append(parts[::-1])
    if TRANSFER_MARK in gold:
        wrong.append(bare)
    if len(parts) > 2:
        wrong.append([parts[0], *parts[2:]])
    return ["-".join(route) for route in wrong if route]


class ValidationTally:
    """Collects what verifier and solver say of a suite's tasks."""

    def __init__(self, suite: Suite) -> None:
        """Start empty.

        Args:
            suite: whose ``verify`` is on trial.
        """
        self._suite = suite
        self._count: Counter[str] = Counter()
        self._problems: list[str] = []

    def _is_exact(self, task: Task, answer: str) -> bool:
        completion = f"<reasoning>Gold.</reasoning><response>{answer}</response>"
        return self._suite.verify(task, completion, finish_reason="stop").parts["exact"] == 1.0

    def add(self, task: Task, stations: Sequence[str], agreement: Agreement, reason: str = "") -> None:
        """Try the verifier on one task and note the solver's word.

        Args:
            task: the task; all its gold routes are tried.
            stations: station names of its map, for corruptions.
            agreement: what an exact solver says of the gold.
            reason: why it does not agree.
        """
        golds = gold_routes(task)
        right = {split_route(gold) for gold in golds}
        wrongs = [wrong for wrong in corrupt_routes(golds[0], stations) if split_route(wrong) not in right]
        refused_gold = [gold for gold in golds if not self._is_exact(task, gold)]
        passed = [wrong for wrong in wrongs if self._is_exact(task, wrong)]
        self._count.update(
            tasks=1, accepted=not refused_gold, corruptions=len(wrongs), refused=len(wrongs) - len(passed)
        )
        self._count[agreement] += 1
        if refused_gold or passed:
            self._problems.append(f"{task.task_id}: gold refused {refused_gold}, corruptions accepted {passed}")
        if agreement != "agrees":
            self._problems.append(f"{task.task_id}: {agreement}: {reason}")

    def report(self) -> ValidationReport:
        """The report over all tasks added."""
        return ValidationReport(
            suite=self._suite.name,
            tasks=self._count["tasks"],
            gold_accepted=self._count["accepted"],
            corruptions=self._count["corruptions"],
            corruptions_refused=self._count["refused"],
            solver_confirmed=self._count["agrees"],
            solver_disagreed=self._count["disagrees"],
            unverifiable=self._count["unverifiable"],
            problems=tuple(self._problems),
        )
