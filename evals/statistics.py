"""Intervals, paired tests, corrections and agreement: pure functions over arrays.

Source: METHODS §2 Statistics; differs: nothing known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from harness.records import Record

Floats = NDArray[np.float64]


class Interval(Record):
    """A two-sided interval in the unit of its values."""

    low: float
    high: float


class PairedTest(Record):
    """A two-sided paired t test; ``t``, ``p_value`` and ``d_z`` are None where all differences are equal."""

    count: int
    """K, the number of differences."""
    mean: float
    std: float
    """Sample standard deviation of the differences."""
    df: int
    t: float | None
    p_value: float | None
    low: float
    high: float
    d_z: float | None


class PassTable(Record):
    """How many tasks two versions pass, jointly."""

    both: int
    regressed: int
    """Passed by the incumbent alone."""
    improved: int
    """Passed by the candidate alone."""
    neither: int

    @property
    def p_value(self) -> float:
        """Exact two-sided McNemar p."""
        return sign_test(self.improved, self.regressed)


class PairedChanges(Record):
    """How many tasks moved up, down or not at all between two versions."""

    improved: int
    regressed: int
    unchanged: int


def mean(values: ArrayLike) -> float:
    """Arithmetic mean; no values raise ValueError, for an empty mean is never 0."""
    return float(_vector(values, at_least=1).mean())


def sample_std(values: ArrayLike) -> float:
    """Standard deviation with n − 1 in the denominator; fewer than two values raise ValueError."""
    return float(_vector(values, at_least=2).std(ddof=1))


def wilson_interval(successes: int, total: int, *, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a proportion.

    Args:
        successes: number of passed trials.
        total: number of trials, at least 1.
        confidence: coverage, 0..1.

    Raises:
        ValueError: counts that are no proportion.
    """
    if not 0 <= successes <= total or total < 1:
        raise ValueError(f"wilson_interval needs 0 <= successes <= total, total >= 1; got {successes} of {total}")
    z = float(special.ndtri((1 + _checked(confidence)) / 2))
    share = successes / total
    scale = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # At 0 and 1 the interval touches the bound exactly; rounding must not step over it.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == total else min(1.0, centre + half)
    return Interval(low=low, high=high)


def mean_interval(values: ArrayLike, *, confidence: float = 0.95, method: Literal["t", "normal"] = "t") -> Interval:
    """Interval of a mean, x̄ ± q·s/√n.

    Args:
        values: independent observations, at least two.
        confidence: coverage, 0..1.
        method: ``t`` takes q from Student's t with n − 1 degrees of freedom, ``normal`` from the normal.

    Raises:
        ValueError: fewer than two values.
    """
    vector = _vector(values, at_least=2)
    upper = (1 + _checked(confidence)) / 2
    quantile = float(special.stdtrit(len(vector) - 1, upper) if method == "t" else special.ndtri(upper))
    half = quantile * sample_std(vector) / math.sqrt(len(vector))
    centre = mean(vector)
    return Interval(low=centre - half, high=centre + half)


def paired_t(differences: ArrayLike, *, confidence: float = 0.95) -> PairedTest:
    """Two-sided paired t test over matched differences.

    Args:
        differences: candidate − incumbent, one per matched seed or task; at least two.
        confidence: coverage of the interval, 0..1.

    Raises:
        ValueError: fewer than two differences.

    Source: METHODS §2 Statistics: t = d̄/(s_d/√K), df K−1, d_z = d̄/s_d.
    """
    vector = _vector(differences, at_least=2)
    std = 0.0 if np.all(vector == vector[0]) else sample_std(vector)  # equal floats may leave a rounding std
    return paired_t_from_summary(mean(vector), std, len(vector), confidence=confidence)


def paired_t_from_summary(mean: float, std: float, count: int, *, confidence: float = 0.95) -> PairedTest:
    """The same test from the mean, sample standard deviation and number of the differences.

    Raises:
        ValueError: ``count`` under two or a negative ``std``.
    """
    if count < 2 or std < 0:
        raise ValueError(f"a paired t test needs count >= 2 and std >= 0; got count {count}, std {std}")
    df = count - 1
    error = std / math.sqrt(count)
    half = float(special.stdtrit(df, (1 + _checked(confidence)) / 2)) * error
    t = mean / error if std > 0 else None
    return PairedTest(
        count=count,
        mean=mean,
        std=std,
        df=df,
        t=t,
        p_value=None if t is None else min(1.0, 2 * float(special.stdtr(df, -abs(t)))),
        low=mean - half,
        high=mean + half,
        d_z=mean / std if std > 0 else None,
    )


def sign_test(improved: int, regressed: int) -> float:
    """Two-sided exact sign test (McNemar on binary outcomes); 1.0 where nothing changed.

    Args:
        improved: pairs in which the candidate is better.
        regressed: pairs in which it is worse; unchanged pairs do not enter.

    Raises:
        ValueError: a negative count.
    """
    if min(improved, regressed) < 0:
        raise ValueError(f"sign_test needs counts >= 0; got {improved} and {regressed}")
    total = improved + regressed
    tail = sum(math.comb(total, k) for k in range(min(improved, regressed) + 1))
    return min(1.0, float(2 * tail / 2**total))


def paired_pass_table(incumbent: ArrayLike, candidate: ArrayLike) -> PassTable:
    """Joint passes of two versions on the same tasks in the same order.

    Args:
        incumbent: per task 1 (passed) or 0.
        candidate: the same tasks.

    Raises:
        ValueError: lengths differ, or a value is neither 0 nor 1 (see :func:`paired_changes` for means).
    """
    before, after = _matched(incumbent, candidate)
    for vector in (before, after):
        strange = vector[(vector != 0) & (vector != 1)]
        if strange.size:
            raise ValueError(f"a pass table needs scores of 0 or 1; got {strange[0]}; use paired_changes for means")
    return PassTable(
        both=int(np.sum((before == 1) & (after == 1))),
        regressed=int(np.sum((before == 1) & (after == 0))),
        improved=int(np.sum((before == 0) & (after == 1))),
        neither=int(np.sum((before == 0) & (after == 0))),
    )


def paired_changes(incumbent: ArrayLike, candidate: ArrayLike, *, tolerance: float = 1e-9) -> PairedChanges:
    """Count tasks whose score rose, fell or stayed.

    Args:
        incumbent: per task score.
        candidate: the same tasks.
        tolerance: differences up to this size are no change.

    Raises:
        ValueError: lengths differ.
    """
    before, after = _matched(incumbent, candidate)
    improved, regressed = int(np.sum(after - before > tolerance)), int(np.sum(before - after > tolerance))
    return PairedChanges(improved=improved, regressed=regressed, unchanged=len(before) - improved - regressed)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm step-down adjusted p values, in the order given; running maximum, capped at 1.

    Raises:
        ValueError: a value outside 0..1.

    Source: METHODS §2 Statistics (within one named family of tests).
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError(f"p values must lie in 0..1; got {list(p_values)}")
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return tuple(adjusted)


def kendall_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Kendall's τ-b rank agreement, −1..1; ties are discounted on both sides.

    Args:
        first: values of the items, at least two.
        second: other values of the same items.

    Raises:
        ValueError: lengths differ, or one side is constant and ranks nothing.
    """
    a, b = _matched(first, second)
    concordance, untied_a, untied_b = 0, 0, 0
    for i, j in combinations(range(len(a)), 2):
        sign_a, sign_b = int(np.sign(a[i] - a[j])), int(np.sign(b[i] - b[j]))
        concordance += sign_a * sign_b
        untied_a += sign_a != 0
        untied_b += sign_b != 0
    if not untied_a or not untied_b:
        raise ValueError("kendall_tau needs at least two different values on each side; one side ranks nothing")
    return concordance / math.sqrt(untied_a * untied_b)


def macro_f1(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Unweighted mean of per-label F1, 2TP / (2TP + FP + FN); 0.0 for a label positive on neither side.

    Args:
        gold: (N, K), 0 or 1.
        predicted: (N, K), 0 or 1.

    Raises:
        ValueError: shapes differ or are not two-dimensional, or a value is neither 0 nor 1.

    Source: METHODS §2 Statistics, label tasks; differs: a label that is positive on neither side counts as 0.
    """
    truth, guess = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if truth.ndim != 2 or truth.shape != guess.shape:
        raise ValueError(f"macro_f1 needs two (N, K) arrays of one shape; got {truth.shape} and {guess.shape}")
    return mean([_f1(paired_pass_table(truth[:, label], guess[:, label])) for label in range(truth.shape[1])])


def _f1(table: PassTable) -> float:
    # "regressed" is gold 1, predicted 0 (a miss); "improved" is gold 0, predicted 1 (a false alarm).
    denominator = 2 * table.both + table.regressed + table.improved
    return 2 * table.both / denominator if denominator else 0.0


def _vector(values: ArrayLike, *, at_least: int) -> Floats:
    vector: Floats = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or len(vector) < at_least:
        raise ValueError(f"expected a list of at least {at_least} numbers; got shape {vector.shape}")
    if not np.all(np.isfinite(vector)):
        raise ValueError("expected finite numbers; got NaN or infinity")
    return vector


def _matched(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    a, b = _vector(first, at_least=1), _vector(second, at_least=1)
    if len(a) != len(b):
        raise ValueError(f"paired values must have one length; got {len(a)} and {len(b)}")
    return a, b


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1; got {confidence}")
    return confidence
