"""What another distribution's suite raises or returns is named, whatever it is."""

import pytest

from evals.suites.guard import GuardedSuite
from evals.suites.metro import MetroSuite
from harness.errors import BoundaryError, UserError

METRO = MetroSuite("mini", 1)
TASK = METRO.tasks(split="train")[0]


class Odd:
    """A sound suite in which one thing is odd."""

    name, family, fingerprint = "odd", "metro", "suite-1"

    def __init__(self, **odd):
        self._odd = odd

    def _do(self, method, sound):
        what = self._odd.get(method, sound)
        if isinstance(what, Exception):
            raise what
        return what

    def tasks(self, *, split):
        return self._do("tasks", METRO.tasks(split=split))

    def verify(self, task, completion, *, finish_reason, token_count=0):
        sound = METRO.verify(task, completion, finish_reason=finish_reason)
        return self._do("verify", sound)

    def seed_harness(self):
        return self._do("seed_harness", METRO.seed_harness())

    def solve(self, task, *, style):
        return self._do("solve", METRO.solve(task, style=style))

    def playbook(self):
        return self._do("playbook", METRO.playbook())

    def validate(self):
        return self._do("validate", None)


CALLS = {
    "tasks": lambda suite: suite.tasks(split="train"),
    "seed_harness": lambda suite: suite.seed_harness(),
    "solve": lambda suite: suite.solve(TASK, style="direct"),
    "playbook": lambda suite: suite.playbook(),
    "validate": lambda suite: suite.validate(),
}


def test_a_sound_suite_passes_unchanged():
    suite = GuardedSuite(Odd(), "odd")
    assert suite.tasks(split="val") == METRO.tasks(split="val")
    assert suite.seed_harness() == METRO.seed_harness() and suite.playbook() == METRO.playbook()
    text = suite.solve(TASK, style="direct")
    assert suite.verify(TASK, text, finish_reason="stop").parts["exact"] == 1.0


@pytest.mark.parametrize("method", CALLS)
def test_an_exception_is_user_code_with_suite_method_and_cause(method):
    suite = GuardedSuite(Odd(**{method: RuntimeError("no data")}), "odd")
    with pytest.raises(BoundaryError, match=f"user_code: suite 'odd': {method} raised RuntimeError: no data"):
        CALLS[method](suite)


@pytest.mark.parametrize("method", CALLS)
def test_a_value_of_another_kind_is_user_code(method):
    suite = GuardedSuite(Odd(**{method: 7}), "odd")
    with pytest.raises(BoundaryError, match=f"{method} gave a int; expected a"):
        CALLS[method](suite)


def test_a_users_mistake_and_an_unknown_style_stay_what_they_are():
    with pytest.raises(UserError, match="no folder"):
        GuardedSuite(Odd(tasks=UserError("no folder")), "odd").tasks(split="train")
    with pytest.raises(ValueError, match="style"):
        GuardedSuite(Odd(), "odd").solve(TASK, style="no such")


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ((TASK, TASK), "twice in 'train'"),
        (METRO.tasks(split="val"), "of another split"),
        ((TASK, "task"), "'str'.* among its items"),
    ],
)
def test_tasks_that_cannot_be_told_apart_or_belong_elsewhere_are_refused(tasks, words):
    with pytest.raises(BoundaryError, match=words):
        GuardedSuite(Odd(tasks=tasks), "odd").tasks(split="train")


def test_a_verdict_of_another_kind_is_an_error_for_the_caller_to_count():
    with pytest.raises(TypeError, match="verify returned a NoneType"):
        GuardedSuite(Odd(verify=None), "odd").verify(TASK, "x", finish_reason="stop")


def test_a_suite_without_a_name_is_refused():
    class Nameless(Odd):
        name = ""

    with pytest.raises(BoundaryError, match="name gave ''"):
        GuardedSuite(Nameless(), "odd")
