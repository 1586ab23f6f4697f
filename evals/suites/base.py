"""What a task suite is: tasks, a verifier, a seed harness, and the proof that the verifier works."""

from __future__ import annotations

from typing import Literal, Protocol

from harness.edit import HarnessEdit
from harness.model import Harness
from harness.records import FinishReason, Record, Scored, Split, Task

Agreement = Literal["agrees", "disagrees", "unverifiable"]
"""What an exact solver says of a gold answer; ``unverifiable`` where a table it needs is absent."""


def unplaced(task: Task) -> Task:
    """The task without the places of its pictures, for a fingerprint that does not depend on where files lie."""
    return task.model_copy(update={"images": tuple(image.model_copy(update={"path": ""}) for image in task.images)})


class Play(Record):
    """One idea for changing a harness, filed under the faults that may call for it.

    A play stores no effect: whether it helps is what the gate measures.
    """

    play_id: str
    faults: tuple[str, ...]
    """Fault kinds (:attr:`harness.records.Diagnosis.fault`) that bring this play up."""
    summary: str
    """What the play changes, in one sentence, for logs."""
    edits: tuple[HarnessEdit, ...] = ()
    """Typed edits that need no model and no solver."""
    demonstration_style: str = ""
    """When set, the teacher also rewrites the demonstrations in this style (``Suite.solve``)."""


class ValidationReport(Record):
    """What a suite found when it ran its verifier and its solver over its own gold."""

    suite: str
    tasks: int
    gold_accepted: int
    """Tasks whose every gold answer the verifier calls exact."""
    corruptions: int
    corruptions_refused: int
    """Corrupted golds that the verifier refuses; must equal ``corruptions``."""
    solver_confirmed: int
    """Tasks whose gold an exact solver found again."""
    solver_disagreed: int = 0
    unverifiable: int = 0
    """Tasks without the tables that a solver needs; never counted as agreement."""
    problems: tuple[str, ...] = ()
    """One sentence for every task that failed a check."""

    @property
    def is_valid(self) -> bool:
        """The verifier accepts all gold and refuses all corruptions, and the solver never disagreed."""
        return (
            self.tasks > 0
            and self.gold_accepted == self.tasks
            and self.corruptions > 0
            and self.corruptions_refused == self.corruptions
            and self.solver_disagreed == 0
        )


class Suite(Protocol):
    """A task family: data, verifier and seed harness; one file of about 30 lines is enough."""

    @property
    def name(self) -> str:
        """Unique name, shown in reports."""
        ...

    @property
    def family(self) -> str:
        """Task family of its harnesses (:attr:`harness.model.Harness.family`)."""
        ...

    @property
    def fingerprint(self) -> str:
        """Content id of all tasks and verifier settings; part of a run's identity."""
        ...

    def tasks(self, *, split: Split) -> tuple[Task, ...]:
        """The frozen tasks of one split, always in the same order."""
        ...

    def verify(self, task: Task, completion: str, *, finish_reason: FinishReason, token_count: int = 0) -> Scored:
        """Score one completion; pure and deterministic.

        Args:
            task: one of this suite's tasks.
            completion: the whole text that the policy wrote.
            finish_reason: why generation ended; ``length`` means truncated.
            token_count: completion tokens, for rewards with a length penalty.
        """
        ...

    def seed_harness(self) -> Harness:
        """The harness that a run starts from."""
        ...

    def solve(self, task: Task, *, style: str) -> str:
        """A worked completion by an exact solver; never copied from the gold answer.

        Raises:
            ValueError: the style is unknown; the message lists the known ones.
        """
        ...

    def playbook(self) -> tuple[Play, ...]:
        """Plays for the rules proposer, in an order that says nothing about their worth."""
        ...

    def validate(self) -> ValidationReport:
        """Run verifier and solver over the suite's own gold and over corrupted gold."""
        ...
