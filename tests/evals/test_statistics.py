"""Every figure is worked by hand or published."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evals.statistics import (
    holm,
    kendall_tau,
    macro_f1,
    mean,
    mean_interval,
    paired_changes,
    paired_pass_table,
    paired_t,
    paired_t_from_summary,
    sample_std,
    sign_test,
    wilson_interval,
)

# Published rows of METHODS §2, K = 10: mean, s, low, high, t, d_z. They are printed to that many digits.
PUBLISHED = [(1.75, 1.007, 1.03, 2.47, 5.496, 1.738), (4.25, 2.038, 2.79, 5.71, 6.595, 2.086)]


@pytest.mark.parametrize(("d", "s", "low", "high", "t", "d_z"), PUBLISHED)
def test_published_rows_are_reproduced(d: float, s: float, low: float, high: float, t: float, d_z: float) -> None:
    row = paired_t_from_summary(d, s, 10)
    assert row.t is not None and row.d_z is not None
    assert (round(row.low, 2), round(row.high, 2), row.df) == (low, high, 9)
    # The inputs are themselves rounded to 0.0005, which moves t by up to 0.003.
    assert row.t == pytest.approx(t, abs=0.003) and row.d_z == pytest.approx(d_z, abs=0.001)


@pytest.mark.parametrize(("d", "s", "low", "high", "t", "d_z"), PUBLISHED)
def test_published_rows_come_out_of_ten_differences(
    d: float, s: float, low: float, high: float, t: float, d_z: float
) -> None:
    # 5 differences at +a and 5 at −a around d: the sample std is a·√(10/9), so a = s·√0.9.
    a = s * math.sqrt(0.9)
    row = paired_t([d + a] * 5 + [d - a] * 5)
    assert row.t is not None and row.d_z is not None
    assert row.mean == pytest.approx(d) and row.std == pytest.approx(s)
    assert (round(row.low, 2), round(row.high, 2)) == (low, high)
    assert row.t == pytest.approx(t, abs=0.003) and row.d_z == pytest.approx(d_z, abs=0.001)


def test_paired_t_on_three_differences_by_hand() -> None:
    # 1, 2, 3: mean 2, s 1, t = 2/(1/√3) = 3.4641; with 2 df p = 1 − t/√(t²+2) = 1 − 3.4641/√14 = 0.0742.
    row = paired_t([1, 2, 3])
    assert (row.count, row.df, row.mean, row.std, row.d_z) == (3, 2, 2.0, 1.0, 2.0)
    assert row.t == pytest.approx(2 * math.sqrt(3))
    assert row.p_value == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(14))
    # t_.975 with 2 df is 4.3027: 2 ± 4.3027/√3
    assert (row.low, row.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=20))
def test_paired_t_agrees_with_scipy(values: list[float]) -> None:
    if np.std(values) < 1e-3:
        return
    expected = stats.ttest_1samp(values, 0.0)
    row = paired_t(values)
    assert row.t == pytest.approx(expected.statistic) and row.p_value == pytest.approx(expected.pvalue)


def test_equal_differences_have_no_t_and_a_point_interval() -> None:
    row = paired_t([0.1, 0.1, 0.1])  # their float std is not exactly 0
    assert (row.t, row.p_value, row.d_z) == (None, None, None)
    assert (row.std, row.low, row.high) == (0.0, row.mean, row.mean)


def test_sample_std_divides_by_n_minus_one() -> None:
    assert sample_std([1, 2, 3, 4]) == pytest.approx(math.sqrt(5 / 3))  # squares 2.25+.25+.25+2.25 = 5
    with pytest.raises(ValueError, match="at least 2"):
        sample_std([1.0])


def test_an_empty_mean_raises_and_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        mean([])
    with pytest.raises(ValueError, match="finite"):
        mean([1.0, float("nan")])
    assert mean([0.0]) == 0.0


def test_wilson_by_hand() -> None:
    # 8 of 10, z = 1.95996: z² = 3.8415; centre (0.8 + 0.192073)/1.384146 = 0.716740;
    # half 1.95996/1.384146·√(0.016 + 0.0096036) = 0.226577.
    row = wilson_interval(8, 10)
    assert (row.low, row.high) == pytest.approx((0.49016, 0.94332), abs=1e-4)
    # 0 of 10: high = z²/(n + z²) = 3.8415/13.8415
    edge = wilson_interval(0, 10)
    assert edge.low == 0.0 and edge.high == pytest.approx(0.27753, abs=1e-5)
    assert wilson_interval(10, 10).high == 1.0
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson_interval(3, 2)


def test_mean_interval_by_hand() -> None:
    # 0, 1, 1, 0: mean 0.5, s = √(1/3) = 0.57735, s/√4 = 0.288675; t_.975,3 = 3.182446, z = 1.959964.
    row = mean_interval([0, 1, 1, 0])
    assert (row.low, row.high) == pytest.approx((0.5 - 0.918693, 0.5 + 0.918693), abs=1e-5)
    row = mean_interval([0, 1, 1, 0], method="normal")
    assert row.high - 0.5 == pytest.approx(0.565793, abs=1e-5)
    with pytest.raises(ValueError, match="confidence"):
        mean_interval([0, 1], confidence=1.0)


@pytest.mark.parametrize(
    ("improved", "regressed", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),  # 2·(1/2)
        (5, 0, 0.0625),  # 2/32
        (8, 2, 112 / 1024),  # 2·(1 + 10 + 45)/1024
        (2, 8, 112 / 1024),
        (3, 3, 1.0),  # 2·42/64 capped
    ],
)
def test_sign_test_by_hand(improved: int, regressed: int, p: float) -> None:
    assert sign_test(improved, regressed) == pytest.approx(p)


def test_pass_table_and_changes_by_hand() -> None:
    incumbent, candidate = [1, 1, 0, 0, 0, 1], [1, 0, 1, 1, 0, 1]
    table = paired_pass_table(incumbent, candidate)
    assert (table.both, table.regressed, table.improved, table.neither) == (2, 1, 2, 1)
    assert table.p_value == 1.0  # 2·(1 + 3)/8
    changes = paired_changes([0.5, 0.2, 0.1], [0.5 + 1e-12, 0.3, 0.0])
    assert (changes.improved, changes.regressed, changes.unchanged) == (1, 1, 1)
    with pytest.raises(ValueError, match="scores of 0 or 1; got 0.5"):
        paired_pass_table([0.5], [1])
    with pytest.raises(ValueError, match="got 1 and 2"):
        paired_changes([1], [1, 0])


def test_holm_by_hand() -> None:
    # sorted 0.01·4 = 0.04, 0.02·3 = 0.06, 0.03·2 = 0.06, 0.6·1 = 0.6; order given is kept
    assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx((0.06, 0.04, 0.6, 0.06))
    # the running maximum: 0.04·2 = 0.08, then 0.05·1 = 0.05 is lifted to 0.08
    assert holm([0.04, 0.05]) == pytest.approx((0.08, 0.08))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()
    with pytest.raises(ValueError, match="0..1"):
        holm([1.5])


def test_kendall_tau_by_hand() -> None:
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == 1.0
    assert kendall_tau([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    assert kendall_tau([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)  # 2 concordant, 1 discordant of 3
    # one tie on the left: 2 concordant of the pairs untied left (2) and right (3): 2/√6
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(6))
    with pytest.raises(ValueError, match="ranks nothing"):
        kendall_tau([1, 1], [1, 2])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=15))
def test_kendall_tau_agrees_with_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(set(a)) < 2 or len(set(b)) < 2:
        return
    assert kendall_tau(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)


def test_macro_f1_by_hand() -> None:
    # label 0: gold 1 1 0 0, guess 1 0 1 0: TP 1, FP 1, FN 1 → 2/4 = 0.5
    # label 1: gold 0 0 0 1, guess 0 0 0 1: TP 1 → 1.0; label 2: no positive on either side → 0.0
    gold = [[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]]
    guess = [[1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert macro_f1(gold, guess) == pytest.approx(0.5)
    assert macro_f1([[1], [0]], [[0], [1]]) == 0.0
    with pytest.raises(ValueError, match="one shape"):
        macro_f1([[1, 0]], [[1]])
