"""Checks of arguments that JAX, PyTorch and the trainer share; no framework is imported.

Each raises before any time is spent, with a message that names the value, the argument and the fix.
"""

import difflib
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args


class ArgumentError(ValueError):
    """An argument does not fit what it is applied to, such as more images than a dataset has."""


Scaling = Literal["normalized", "literal", "adaptive"]  # of layer-wise perturbations
SCALINGS: tuple[str, ...] = get_args(Scaling)


def is_number(value: Any, kind: type = numbers.Real) -> bool:
    """Returns whether ``value`` is a number of this kind, Python's or NumPy's; booleans are not."""
    return isinstance(value, kind) and not isinstance(value, bool)


def non_negative(name: str, value: Any, expected: str = "a number >= 0, or a schedule of the step count") -> float:
    """Returns a finite number >= 0, such as ρ or α."""
    if not is_number(value):
        raise TypeError(f"{name}={value!r} is not a number; pass {expected}.")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={float(value)} is out of range; pass a finite {name} >= 0.")
    return float(value)


def positive(name: str, value: Any) -> float:
    """Returns a number > 0, such as a norm to clip to."""
    if not is_number(value):
        raise TypeError(f"{name}={value!r} is not a number; pass a number > 0, or None.")
    if not value > 0:
        raise ValueError(f"{name}={float(value)} is out of range; pass {name} > 0, or None.")
    return float(value)


def whole(name: str, value: Any, least: int = 1) -> int:
    """Returns a whole number >= ``least``, such as a number of groups or steps."""
    if not is_number(value, numbers.Integral):
        raise TypeError(f"{name}={value!r} is not an int; pass a whole number >= {least}.")
    if value < least:
        raise ValueError(f"{name}={value} is out of range; pass {name} >= {least}.")
    return int(value)


def period(k: Any) -> int:
    """Returns k, the number of steps that share one second gradient."""
    if not is_number(k, numbers.Integral):
        raise TypeError(f"k={k!r} is not an int; pass how many steps share one second gradient, e.g. k=5.")
    if k < 1:
        raise ValueError(f"k={k} is out of range; pass k >= 1 (k=1 is SAM, k=5 refreshes every 5th step).")
    return int(k)


def exponent(p: Any) -> float:
    """Returns the p of a p-norm, 1 < p ≤ ∞."""
    if not is_number(p):
        raise TypeError(f"p={p!r} is not a number; pass 1 < p <= inf, e.g. p=2.0 or p=float('inf').")
    if not p > 1:  # NaN too
        raise ValueError(f"p={p} is out of range; pass 1 < p <= inf, e.g. p=2.0 or p=float('inf').")
    return float(p)


def layer_scaling(scaling: Any) -> str:
    """Returns a layer scaling, one of ``SCALINGS``."""
    if scaling not in SCALINGS:
        names = ", ".join(map(repr, SCALINGS))
        raise ValueError(f"scaling={scaling!r} is unknown; pass one of {names}.")
    return str(scaling)


def name_function(argument: str, function: Callable[[str], Any] | None, example: str, result: str) -> None:
    """Raises unless an argument is None or a function of a parameter's name, like ``example``, such as ``layers``."""
    if function is not None and not callable(function):
        raise TypeError(
            f"{argument}={function!r} is not callable; pass a function from a name like {example!r} to {result}."
        )


def decay(name: str, value: Any) -> float:
    """Returns a number in [0, 1), such as MSAM's momentum."""
    if not is_number(value):
        raise TypeError(f"{name}={value!r} is not a number; pass 0 <= {name} < 1.")
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value} is out of range; pass 0 <= {name} < 1.")
    return float(value)


def close_names(name: str, names: Iterable[str]) -> list[str]:
    """Returns up to three names that resemble ``name``, most similar first."""
    return difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)


def did_you_mean(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Returns ``"; did you mean a or b?"``, or ``otherwise`` if no name is close: by default the list of all names."""
    names = list(names)
    close = close_names(name, names)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are {', '.join(names)}" if otherwise is None else f"; {otherwise}"
