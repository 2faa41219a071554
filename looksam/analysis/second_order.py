"""What g_v is to second order: g_s ≈ g + H ε, so g_v is nearly the part of H ε that is orthogonal to g."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from looksam.analysis import checks
from looksam.analysis.hessian import hessian_vector_product
from looksam.rules import look_sam, vector
from looksam.rules.perturbation import steepest
from looksam.rules.vector import Vector


class Prediction(NamedTuple):
    """A predicted g_v beside the measured one."""

    norm: jax.Array
    error: jax.Array  # ‖predicted − measured‖
    relative_error: jax.Array  # over ‖measured‖; where that is 0: 0 if the prediction is 0 too, and else infinite
    cosine: jax.Array  # between the two; 0 where one of them is 0


class SecondOrder(NamedTuple):
    g_v_norm: jax.Array  # measured, by the second gradient
    projected: Prediction  # H ε off g; for p = 2, ρ (H ĝ − (ĝᵀHĝ) ĝ)
    printed: Prediction  # ½ H ε, the paper's appendix, which leaves the part along g in


def second_order(loss: Callable[[Any], jax.Array], params: Any, rho: ArrayLike, p: float = 2.0) -> SecondOrder:
    """g_v measured, beside two predictions of it by one product with the Hessian.

    ε = ρ d(g) is that of the rules, and both projections are theirs. On a quadratic loss ``projected`` is exact. On any
    smooth loss its relative error goes to 0 in proportion to ρ; that of ``printed`` does not. A ReLU network is not
    smooth: units that change sign between w and w + ε are in g_v, and in neither prediction.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import second_order
      >>> found = second_order(lambda w: w[0] ** 2 + 3 * w[1] ** 2, jnp.array([1.0, 1.0]), rho=0.1)
      >>> print(f"{found.projected.relative_error:.3f} {found.printed.relative_error:.3f}")
      0.000 2.386
    """
    checks.non_negative("rho", rho)
    rule, gradient, dtype = look_sam(rho, k=2, p=p), jax.grad(loss), vector.accumulator(params)
    g = gradient(params)

    def g_v_by(gradient_at: Callable[[Vector], Vector]) -> Vector:
        return vector.cast(rule.transform(g, gradient_at, params, rule.init(params), refresh=True)[1].g_v, dtype)

    epsilon = vector.scale(jnp.asarray(rho, dtype), steepest(vector.cast(g, dtype), p, dtype))
    h_epsilon = hessian_vector_product(loss, params, epsilon)
    measured = g_v_by(gradient)
    projected = g_v_by(lambda _: jax.tree.map(jnp.add, g, h_epsilon))
    printed = vector.scale(jnp.asarray(0.5, dtype), vector.cast(h_epsilon, dtype))
    norm = jnp.sqrt(vector.squared_norm(measured, dtype))
    return SecondOrder(norm, _compared(projected, measured), _compared(printed, measured))


def _compared(predicted: Vector, measured: Vector) -> Prediction:
    dtype = vector.accumulator(measured)
    squared, along = vector.squared_norm_and_dot(predicted, measured, dtype)
    norm, measured_norm = jnp.sqrt(squared), jnp.sqrt(vector.squared_norm(measured, dtype))
    error = jnp.sqrt(vector.squared_norm(jax.tree.map(jnp.subtract, predicted, measured), dtype))
    lost = (measured_norm == 0) & (error > 0)
    relative = jnp.where(lost, jnp.full_like(error, jnp.inf), vector.divide(error, measured_norm))
    cosine = jnp.clip(vector.divide(vector.divide(along, norm), measured_norm), -1.0, 1.0)
    return Prediction(norm, error, relative, cosine)
