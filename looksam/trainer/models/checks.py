"""What a caller can get wrong when building a model, said before anything is traced."""

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r} is not an int; pass a whole number >= 1.")
    if operator.index(value) < 1:
        raise ValueError(f"{name}={value} is out of range; pass a whole number >= 1.")
    return operator.index(value)


def wholes(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple | list):
        raise TypeError(f"{name}={values!r} is not a sequence; pass a tuple of whole numbers, e.g. {name}=(2, 2).")
    return tuple(whole(f"{name}[{i}]", value) for i, value in enumerate(values))


def rate(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number; pass 0 <= {name} < 1.")
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value} is out of range; pass 0 <= {name} < 1.")
    return float(value)


def positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number; pass {name} > 0.")
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value} is out of range; pass a finite {name} > 0.")
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is not a bool; pass True or False.")
    return value


def shape(image_shape: Any) -> tuple[int, int, int]:
    if not isinstance(image_shape, tuple | list) or len(image_shape) != 3:
        raise ValueError(f"image_shape={image_shape!r} is not (height, width, channels); pass e.g. (32, 32, 3).")
    height, width, channels = wholes("image_shape", image_shape)
    return height, width, channels


def floating(dtype: DTypeLike) -> jnp.dtype:
    found = jnp.dtype(dtype)
    if not jnp.issubdtype(found, jnp.floating):
        raise TypeError(f"dtype={found.name} is not floating-point; pass e.g. jnp.float32 or jnp.bfloat16.")
    if jax.dtypes.canonicalize_dtype(found) != found:
        raise ValueError(f"dtype={found.name} is off in JAX; set jax_enable_x64, or pass e.g. jnp.float32.")
    return found


def divides(part_name: str, part: int, whole_name: str, value: int) -> None:
    if value % part:
        raise ValueError(f"{part_name}={part} does not divide {whole_name}={value}; pass one that does.")
