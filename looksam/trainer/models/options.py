"""Checks of the options that a model is built with; each raises before anything is traced, and names the fix."""

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from looksam.arguments import is_number


def positive_integer(name: str, value: Any) -> int:
    """Returns an int >= 1, given as any integer type."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} is not an int; pass a whole number >= 1.")
    if operator.index(value) < 1:
        raise ValueError(f"{name}={value} is out of range; pass a whole number >= 1.")
    return operator.index(value)


def positive_integers(name: str, values: Any) -> tuple[int, ...]:
    """Returns a tuple of ints >= 1."""
    if not isinstance(values, tuple | list):
        raise TypeError(f"{name}={values!r} is not a sequence; pass a tuple of whole numbers, e.g. {name}=(2, 2).")
    return tuple(positive_integer(f"{name}[{i}]", value) for i, value in enumerate(values))


def rate(name: str, value: Any) -> float:
    """Returns the share of what is dropped, in [0, 1)."""
    if not is_number(value):
        raise TypeError(f"{name}={value!r} is not a number; pass 0 <= {name} < 1.")
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value} is out of range; pass 0 <= {name} < 1.")
    return float(value)


def positive(name: str, value: Any) -> float:
    """Returns a finite number > 0."""
    if not is_number(value):
        raise TypeError(f"{name}={value!r} is not a number; pass {name} > 0.")
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value} is out of range; pass a finite {name} > 0.")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Returns True or False, and accepts nothing else."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is not a bool; pass True or False.")
    return value


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    """Returns one of the known words."""
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown; pass {' or '.join(map(repr, known))}.")
    return str(value)


def image_shape(value: Any) -> tuple[int, int, int]:
    """Returns (height, width, channels)."""
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise ValueError(f"image_shape={value!r} is not (height, width, channels); pass e.g. (32, 32, 3).")
    height, width, channels = positive_integers("image_shape", value)
    return height, width, channels


def floating(value: DTypeLike) -> jnp.dtype:
    """Returns a floating-point dtype that JAX has enabled."""
    dtype = jnp.dtype(value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype={dtype.name} is not floating-point; pass e.g. jnp.float32 or jnp.bfloat16.")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f"dtype={dtype.name} is disabled in JAX; set jax_enable_x64, or pass e.g. jnp.float32.")
    return dtype


def divides(part_name: str, part: int, whole_name: str, whole: int) -> None:
    """Raises unless ``part`` divides ``whole``."""
    if whole % part:
        raise ValueError(f"{part_name}={part} does not divide {whole_name}={whole}; pass one that does.")
