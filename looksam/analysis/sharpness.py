"""How much the loss rises in a ball around the weights."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from looksam.rules import vector
from looksam.rules.balls import steepest


def one_step_sharpness(loss: Callable[[Any], jax.Array], params: Any, rho: float, p: float = 2.0) -> jax.Array:
    """L(w + ρ d(g)) − L(w), with d(g) the unit step of the p-norm that climbs the gradient g of L at w fastest.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import one_step_sharpness
      >>> print(one_step_sharpness(lambda w: jnp.sum(w**2), jnp.array([3.0, 4.0]), rho=1.0))  # 6² - 5²
      11.0
    """
    value, g = jax.value_and_grad(loss)(params)
    dtype = vector.accumulator(params)
    climb = steepest(vector.cast(g, dtype), p, dtype)
    neighbour = vector.add_scaled(vector.cast(params, dtype), jnp.asarray(rho, dtype), climb)
    return loss(vector.cast_like(neighbour, params)) - value
