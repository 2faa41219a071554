"""When a difference between two methods is called one.

Welch's t-test, two-sided, on the accuracies of their seeds; Holm's correction over the comparisons that are made in one
column of a table; 0.05. Seeds differ in the first weights, the order of the images and all that is drawn; the images
and the random labels are the same for all.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

LEVEL = 0.05
RULE = (
    "A difference is called significant where Welch's two-sided t-test over the seeds gives p < 0.05 after Holm's "
    "correction for the comparisons made in the same column."
)


class Difference(NamedTuple):
    mean: float
    low: float  # ends of the 95 % interval of the mean
    high: float
    p: float  # of Welch's test, not corrected


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """mean(a) - mean(b). Where neither spreads, p is 1 for equal means and 0 for others."""
    from scipy import stats  # type: ignore[import-untyped]

    mean = float(np.mean(a) - np.mean(b))
    squares = [np.var(x, ddof=1) / len(x) for x in (a, b)]
    error = math.sqrt(sum(squares))
    if error == 0:
        return Difference(mean, mean, mean, float(mean == 0))
    freedom = error**4 / sum(s**2 / (len(x) - 1) for s, x in zip(squares, (a, b), strict=True))
    half = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    return Difference(mean, mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, freedom)))


Name = TypeVar("Name", bound=Hashable)


def significant(differences: Mapping[Name, Difference]) -> dict[Name, bool]:
    """Holm: the i-th smallest p of m is held against LEVEL / (m - i), and all after the first that fails fail too."""
    order = sorted(differences, key=lambda name: differences[name].p)
    verdicts, passed = {}, True
    for i, name in enumerate(order):
        passed = passed and differences[name].p < LEVEL / (len(order) - i)
        verdicts[name] = passed
    return {name: verdicts[name] for name in differences}


def share_kept(base: Sequence[float], sam: Sequence[float], look: Sequence[float]) -> float:
    """How much of SAM's gain over the base another method keeps, 1 for all of it."""
    return float((np.mean(look) - np.mean(base)) / (np.mean(sam) - np.mean(base)))
