"""Starting weights, drawn flat: the numbers are those of a draw in the weight's own shape, but XLA's CPU back end
takes three times as long or more to compile a four-dimensional draw as a flat one.
"""

import math
from collections.abc import Callable

import jax
from jax.typing import DTypeLike

Initializer = Callable[[jax.Array, tuple[int, ...], DTypeLike], jax.Array]


def normal(deviation: float) -> Initializer:
    """Normal with mean 0."""
    return lambda key, shape, dtype: _flat(jax.random.normal, key, shape, dtype) * deviation


def uniform(limit: float) -> Initializer:
    """Uniform in [−limit, limit)."""
    return lambda key, shape, dtype: (2 * _flat(jax.random.uniform, key, shape, dtype) - 1) * limit


def _flat(draw: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    return draw(key, (math.prod(shape),), dtype).reshape(shape)
