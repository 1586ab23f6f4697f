"""Real small data for role tests: a metro suite, and traces that its own verifier scored."""

from __future__ import annotations

from evals.suites.metro import MetroSuite
from harness.records import Task, Trace, Unscored

SUITE = MetroSuite("pocket", 0, counts={"train": 8, "val": 4, "test": 4})
TRAIN = SUITE.tasks(split="train")
VAL = SUITE.tasks(split="val")
HARNESS = SUITE.seed_harness()


def good(task: Task) -> str:
    """An exact completion."""
    return SUITE.solve(task, style="direct")


def clipped(task: Task) -> str:
    """The exact route without its last station."""
    head, _, _ = good(task).rpartition("-")
    return f"{head}</response>"


def tagless(task: Task) -> str:
    """A wrong route in a broken form."""
    return clipped(task).replace("</reasoning>", "")


def trace(task: Task, completion: str, *, replicate: int = 0, harness_id: str = HARNESS.harness_id) -> Trace:
    """A trace with the suite's verdict."""
    return Trace(
        trace_id=f"trace-{task.task_id}-{replicate}",
        task_id=task.task_id,
        split=task.split,
        policy_id="policy-1",
        harness_id=harness_id,
        purpose="rollout",
        replicate=replicate,
        completion=completion,
        finish_reason="stop",
        verdict=SUITE.verify(task, completion, finish_reason="stop"),
    )


def lost(task: Task, *, replicate: int = 0, harness_id: str = HARNESS.harness_id) -> Trace:
    """A trace that an engine failure left without a score."""
    scored = trace(task, "", replicate=replicate, harness_id=harness_id)
    return scored.model_copy(update={"verdict": Unscored(boundary="engine", error="out of memory")})
