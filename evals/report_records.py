"""What a closing report is made from, and the lines that it is made of."""

from __future__ import annotations

from typing import Literal

from evals.evaluation import Evaluation
from harness.records import Record, Split
from memory.records import DecisionRecord, Outcome

Label = Literal["base", "final"]
"""``base``: the pair that the run started from; ``final``: the pair with the best val score."""


class Measured(Record):
    """An evaluation and which of the two pairs it measured."""

    label: Label
    evaluation: Evaluation


class CostLine(Record):
    """What one role used, reused work included."""

    role: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    seconds: float = 0.0


class CurvePoint(Record):
    """One point of a named series over rollout steps or rounds."""

    series: str
    step: int
    value: float


class ReportSource(Record):
    """All that a report is made from; the caller reads it from the stores."""

    run_id: str
    strategy: str
    suite: str
    seed: int
    measured: tuple[Measured, ...]
    decisions: tuple[DecisionRecord, ...] = ()
    costs: tuple[CostLine, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    artefacts: dict[str, str] = {}
    """Where things are, by name."""
    seconds: float = 0.0
    """Wall time of the run."""


class ScoreLine(Record):
    """Accuracy of one pair on one split."""

    label: Label
    split: Split
    mean: float
    low: float
    """Of the 95 % interval; the task is the unit."""
    high: float
    tasks: int
    """Scored tasks."""
    replicate_means: tuple[float, ...]
    replicate_std: float | None
    """Sample standard deviation over replicates; None with one replicate."""
    unscored: int
    policy_id: str
    harness_id: str


class GainLine(Record):
    """Final minus base on the tasks of one split, paired by task."""

    split: Split
    mean: float
    low: float
    """Of the 95 % interval."""
    high: float
    p_value: float | None
    """Two-sided paired t; None where every task moved alike."""
    improved: int
    regressed: int
    tasks: int


class GateLine(Record):
    """One gate decision."""

    round_number: int
    name: str
    outcome: Outcome
    incumbent_score: float | None
    """b."""
    candidate_score: float | None
    """c."""
    improved: int | None
    regressed: int | None
    p_value: float | None
    """Two-sided exact sign test over the moved tasks; shown, not the gate's rule."""
    reason: str


class Report(Record):
    """The closing table."""

    run_id: str
    strategy: str
    suite: str
    seed: int
    seconds: float
    scores: tuple[ScoreLine, ...]
    gains: tuple[GainLine, ...]
    gates: tuple[GateLine, ...]
    costs: tuple[CostLine, ...]
    curve: tuple[CurvePoint, ...]
    artefacts: dict[str, str]

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of decisions by outcome, only those that occurred."""
        words = [gate.outcome for gate in self.gates]
        return {word: words.count(word) for word in dict.fromkeys(words)}

    def score(self, label: Label, *, split: Split) -> ScoreLine | None:
        """One accuracy, or None when it was not measured."""
        found = [line for line in self.scores if (line.label, line.split) == (label, split)]
        return found[0] if found else None
