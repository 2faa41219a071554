"""Means with their standard errors, and when the difference of two methods is called significant.

The test is Welch's t-test, two-sided, on the accuracies of the seeds, with Holm's correction over the comparisons that
one column of a table makes, at 0.05. Seeds differ in the initial weights, the order of the images and all other random
draws; the images and the random labels are the same for all.
"""

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

LEVEL = 0.05
RULE = (
    "A difference is called significant where Welch's two-sided t-test over the seeds gives p < 0.05 after Holm's "
    "correction for the comparisons made in the same column."
)


def mean_and_standard_error(values: Sequence[Any] | np.ndarray) -> tuple[Any, Any]:
    """The mean over the first axis (the seeds) and its standard error, which is 0 for a single seed.

    >>> mean, error = mean_and_standard_error([79.0, 81.0])
    >>> float(mean), round(float(error), 6)
    (80.0, 1.0)
    """
    array = np.asarray(values)
    mean = np.mean(array, axis=0)
    return mean, np.std(array, axis=0, ddof=1) / np.sqrt(len(array)) if len(array) > 1 else np.zeros_like(mean)


class Difference(NamedTuple):
    """The difference of two means."""

    mean: float
    low: float  # ends of its 95 % confidence interval
    high: float
    p: float  # of Welch's test, not corrected


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Returns mean(a) - mean(b) with Welch's test.

    Where neither of them varies, p is 1 for equal means and 0 for different ones.
    """
    from scipy import stats  # type: ignore[import-untyped]

    mean = float(np.mean(a) - np.mean(b))
    if np.var(a) == np.var(b) == 0:
        return Difference(mean, mean, mean, float(mean == 0))
    with warnings.catch_warnings():  # SciPy warns where one of the two does not vary
        warnings.simplefilter("ignore", RuntimeWarning)
        result = stats.ttest_ind(a, b, equal_var=False)
        interval = result.confidence_interval(1 - LEVEL)
    return Difference(mean, float(interval.low), float(interval.high), float(result.pvalue))


Name = TypeVar("Name", bound=Hashable)


def significant(differences: Mapping[Name, Difference]) -> dict[Name, bool]:
    """Which differences are significant by Holm's correction.

    The i-th smallest p of m is compared with LEVEL / (m - i), counted from 0; from the first that fails, all fail.
    """
    order = sorted(differences, key=lambda name: differences[name].p)
    verdicts, passed = {}, True
    for i, name in enumerate(order):
        passed = passed and differences[name].p < LEVEL / (len(order) - i)
        verdicts[name] = passed
    return {name: verdicts[name] for name in differences}


def gain_text(mean: float, clear: bool) -> str:
    """A difference in points, and that it is not significant where it is not.

    >>> gain_text(1.27, True), gain_text(-0.002, False)
    ('+1.27', '+0.00 (not significant)')
    """
    return f"{mean:+z.2f}{'' if clear else ' (not significant)'}"


def above_or_below(mean: float) -> str:
    """A difference in points, to be followed by what something is above or below."""
    return f"{abs(mean):.2f} points {'above' if mean >= 0 else 'below'}"


def verdict(clear: bool) -> str:
    """Whether a difference is significant, in words."""
    return "significant" if clear else "not significant"


def share_kept(base: Sequence[float], sam: Sequence[float], look: Sequence[float]) -> float:
    """The share of SAM's gain over the base that another method keeps, 1 for all of it."""
    return float((np.mean(look) - np.mean(base)) / (np.mean(sam) - np.mean(base)))
