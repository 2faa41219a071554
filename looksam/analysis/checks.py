"""What a caller can get wrong, said before anything is traced: the value, the place and the fix."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def whole(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} is not an int; pass a whole number >= {least}.")
    if value < least:
        raise ValueError(f"{name}={value} is out of range; pass {name} >= {least}.")
    return int(value)


def non_negative(name: str, value: Any) -> None:
    """A number or an array scalar; the value of a traced one is not seen."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number | np.ndarray | jax.Array):
        raise TypeError(f"{name}={value!r} is not a number; pass a number >= 0.")
    if jnp.shape(value) != ():
        raise ValueError(f"{name} has shape {jnp.shape(value)}; pass a scalar (vmap over it for many).")
    if not isinstance(value, jax.core.Tracer) and not 0 <= float(value) < math.inf:  # NaN too
        raise ValueError(f"{name}={float(value)} is out of range; pass a finite {name} >= 0.")


def positive(name: str, value: Any) -> None:
    non_negative(name, value)
    if not isinstance(value, jax.core.Tracer) and not float(value) > 0:
        raise ValueError(f"{name}={float(value)} is out of range; pass {name} > 0.")
