"""Welch's test and its interval against SciPy's, Holm's correction against an example by hand."""

import numpy as np
import pytest
from scipy import stats

from looksam.experiments.engine.statistics import (
    Difference,
    difference,
    mean_and_standard_error,
    share_kept,
    significant,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("n", "m", "spread", "apart"), [(5, 5, 0.3, 0.0), (5, 5, 3.0, 1.0), (3, 9, 0.1, -4.0), (2, 2, 1, 2)]
)
def test_a_difference_is_that_of_welch(n, m, spread, apart):
    a, b = 80 + apart + RNG.normal(size=n), 80 + spread * RNG.normal(size=m)
    expected = stats.ttest_ind(a, b, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    found = difference(a.tolist(), b.tolist())
    np.testing.assert_allclose(found, (a.mean() - b.mean(), low, high, expected.pvalue), rtol=1e-9)


def test_one_side_without_spread():
    a, b = [80.0, 80.0, 80.0], [79.0, 79.5, 80.5]
    expected = stats.ttest_1samp(b, 80.0)  # all the spread is in b: as if a were known
    assert difference(a, b).p == pytest.approx(expected.pvalue, rel=1e-9)


def test_no_spread_at_all():
    assert difference([80.0, 80.0], [80.0, 80.0]) == Difference(0.0, 0.0, 0.0, 1.0)
    assert difference([80.5, 80.5], [80.0, 80.0]) == Difference(0.5, 0.5, 0.5, 0.0)


def _with_p(**values):
    return {name: Difference(0.0, 0.0, 0.0, p) for name, p in values.items()}


def test_holm_by_hand():
    # in order 0.011, 0.015, 0.02, 0.04 against 0.0125, 0.0167, 0.025, 0.05: all pass
    assert all(significant(_with_p(a=0.04, b=0.011, c=0.02, d=0.015)).values())
    # 0.011, 0.02, 0.021, 0.03: the second misses 0.0167, and the rest fall with it, though 0.021 < 0.025
    found = significant(_with_p(a=0.03, b=0.011, c=0.021, d=0.02))
    assert found == {"a": False, "b": True, "c": False, "d": False}
    assert list(found) == ["a", "b", "c", "d"]  # as they came


def test_holm_at_the_level_itself():
    assert significant(_with_p(a=0.05)) == {"a": False}
    assert significant(_with_p(a=0.0499)) == {"a": True}
    assert significant({}) == {}


def test_share_kept():
    assert share_kept([70.0, 72.0], [75.0, 77.0], [74.0, 76.0]) == pytest.approx(0.8)
    assert share_kept([70.0, 72.0], [75.0, 77.0], [69.0, 71.0]) == pytest.approx(-0.2)


def test_standard_errors_are_over_the_first_axis():
    values = RNG.normal(size=(5, 3))
    mean, error = mean_and_standard_error(values)
    np.testing.assert_allclose(mean, values.mean(axis=0))
    np.testing.assert_allclose(error, stats.sem(values))
    assert mean_and_standard_error([80.0]) == (80.0, 0.0)
