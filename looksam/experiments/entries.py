"""Numbers as entries of a table."""

from collections.abc import Sequence

import numpy as np

from looksam.experiments.report.document import Entry, Value


def spread(values: Sequence[float], digits: int = 2) -> Value:
    """Mean and standard error over seeds."""
    return Value(float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values))), digits)


def printed(number: float | None) -> Entry:
    """A number of the paper, to the one digit it prints; None where it has none."""
    return None if number is None else Value(number, digits=1)


def ratio(number: float | None, base: float | None) -> Entry:
    """How many times the base, where both are known."""
    return None if number is None or base is None else Value(number / base, digits=2, unit="×")
