"""The SAM gradient in parts, g_s = g_h + g_v: how fast each part changes, and what g_v is to second order.

g_h is the part of g_s along g, and g_v the part orthogonal to it, which LookSAM reuses.

Drift: the paper (its figure of "difference of gradients between every 5 steps") plots ‖g_x^t − g_x^(t+k)‖ with k = 5
for x = s, h, v along training. ``Change.absolute`` is that number. The drift of g itself, the relative drift and the
cosine are our additions.

Second order: g_s ≈ g + H ε, so g_v is nearly the part of H ε that is orthogonal to g.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from looksam import arguments
from looksam.analysis.hessian import Loss, hessian_vector_product
from looksam.rules import LookSAMState, Rule, look_sam, pytree, validation
from looksam.rules.perturbation import steepest
from looksam.rules.pytree import Scalar, Vector


class Components(NamedTuple):
    """One entry for each vector of a SAM step: the vectors themselves, or a description of each."""

    g: Any  # the gradient at w
    g_s: Any  # the gradient at w + ε
    g_h: Any  # the part of g_s along g, g_s − g_v
    g_v: Any  # the part of g_s orthogonal to g; 0 where it is only rounding, as in the rules


def components(loss: Loss, params: Any, rho: ArrayLike, p: float = 2.0) -> Components:
    """Returns g, g_s, g_h and g_v of one SAM step, by the projection of the rules: g_s = g_h + g_v, g_v ⊥ g.

    Where g_s is not finite the rules fall back to g, and so does this function: g_s = g, g_v = 0.

    Args:
      loss: ``loss(params)``; close it over the minibatch of the step.
      params: w, a pytree.
      rho: radius of the perturbation, ≥ 0.
      p: norm in which the radius is measured, 1 < p ≤ ∞.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import components
      >>> parts = components(lambda w: w[0] ** 2 + 3 * w[1] ** 2, jnp.array([1.0, 1.0]), rho=0.1)
      >>> print(*(f"{x:.3f}" for x in parts.g_s), *(f"{x:.3f}" for x in parts.g_v))
      2.063 6.569 -0.114 0.038
    """
    rule, gradient = _rule(rho, p), jax.grad(loss)
    g = gradient(params)
    g_s, g_v = _decomposed(rule, g, gradient, params)
    return Components(g, g_s, jax.tree.map(jnp.subtract, g_s, g_v), g_v)


class Change(NamedTuple):
    """The change from x(t − lag) to x(t). NaN, except for the norm, in the first ``lag`` steps."""

    norm: jax.Array  # ‖x(t)‖
    absolute: jax.Array  # ‖x(t) − x(t − lag)‖
    relative: jax.Array  # absolute/‖x(t)‖: the error of reusing the old vector; 0 where ‖x(t)‖ is 0
    cosine: jax.Array  # between the two; 0 where one of them is 0


class DriftState(NamedTuple):
    """The components of the last ``lag`` steps."""

    count: jax.Array  # type: ignore[assignment]  # steps seen
    ring: Components  # each leaf (lag, *shape): step t at t % lag


class Drift(NamedTuple):
    """``init(params) -> state`` and ``update(state, components) -> (state, changes)``, from ``make_drift``."""

    init: Callable[[Vector], DriftState]
    update: Callable[[DriftState, Components], tuple[DriftState, Components]]


def make_drift(lag: int = 5) -> Drift:
    """Returns functions that measure the drift of the components over ``lag`` steps, step by step.

    ``update`` takes the components of the next step and returns a ``Change`` for each. It is jitted, and donates the
    state that it is given: the ring, 4 · lag copies of the parameters, is updated in place. Feed it with each step's
    own minibatch to measure what the paper plots, or with one fixed batch to see the change of the weights alone.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from looksam.analysis import components, make_drift
      >>> loss = lambda w: w[0] ** 2 + 3 * w[1] ** 2
      >>> w, drift = jnp.array([1.0, 1.0]), make_drift(lag=2)
      >>> state = drift.init(w)
      >>> for _ in range(3):
      ...     parts = components(loss, w, rho=0.1)
      ...     state, changes = drift.update(state, parts)
      ...     w = w - 0.1 * parts.g_s
      >>> print(f"{changes.g_s.relative:.2f} {changes.g_v.relative:.2f}")
      3.58 0.76
    """
    length = arguments.whole("lag", lag)

    def init(params: Vector) -> DriftState:
        one = jax.tree.map(lambda x: jnp.zeros((length, *jnp.shape(x)), jnp.result_type(x)), params)
        return DriftState(jnp.zeros((), jnp.int32), Components(one, *(jax.tree.map(jnp.copy, one) for _ in range(3))))

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: DriftState, new: Components) -> tuple[DriftState, Components]:
        place, full = state.count % length, state.count >= length
        old = jax.tree.map(lambda rows: rows[place], state.ring)
        changes = Components(*(_change(a, b, full) for a, b in zip(old, new, strict=True)))
        ring = jax.tree.map(lambda rows, x: rows.at[place].set(x.astype(rows.dtype)), state.ring, new)
        return DriftState(state.count + 1, ring), changes

    return Drift(init, update)


class Prediction(NamedTuple):
    """A predicted g_v compared with the measured one."""

    norm: jax.Array
    error: jax.Array  # ‖predicted − measured‖
    relative_error: jax.Array  # error/‖measured‖; where that norm is 0: 0 if the prediction is 0 too, else infinite
    cosine: jax.Array  # between the two; 0 where one of them is 0


class SecondOrder(NamedTuple):
    """The measured g_v and two predictions of it."""

    g_v_norm: jax.Array  # measured, with the second gradient
    projected: Prediction  # the part of H ε orthogonal to g; for p = 2, ρ (H ĝ − (ĝᵀHĝ) ĝ)
    printed: Prediction  # ½ H ε, as in the paper's appendix, which leaves the part along g in


def second_order(loss: Loss, params: Any, rho: ArrayLike, p: float = 2.0) -> SecondOrder:
    """Compares the measured g_v with two predictions of it by one product with the Hessian.

    ε = ρ d(g) is that of the rules, and so are both projections. On a quadratic loss ``projected`` is exact. On any
    smooth loss its relative error goes to 0 in proportion to ρ; that of ``printed`` does not. A ReLU network is not
    smooth: units that change sign between w and w + ε contribute to g_v, and to neither prediction.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import second_order
      >>> result = second_order(lambda w: w[0] ** 2 + 3 * w[1] ** 2, jnp.array([1.0, 1.0]), rho=0.1)
      >>> print(f"{result.projected.relative_error:.3f} {result.printed.relative_error:.3f}")
      0.000 2.386
    """
    rule, gradient, dtype = _rule(rho, p), jax.grad(loss), pytree.accumulator(params)
    g = gradient(params)

    def g_v_by(gradient_at: Callable[[Vector], Vector]) -> Vector:
        return pytree.cast(_decomposed(rule, g, gradient_at, params)[1], dtype)

    epsilon = pytree.scale(jnp.asarray(rho, dtype), steepest(pytree.cast(g, dtype), p, dtype))
    h_epsilon = hessian_vector_product(loss, params, epsilon)
    measured = g_v_by(gradient)
    projected = g_v_by(lambda _: jax.tree.map(jnp.add, g, h_epsilon))
    printed = pytree.scale(jnp.asarray(0.5, dtype), pytree.cast(h_epsilon, dtype))
    norm = jnp.sqrt(pytree.squared_norm(measured, dtype))
    return SecondOrder(norm, _prediction(projected, measured), _prediction(printed, measured))


def _rule(rho: ArrayLike, p: float) -> Rule:
    return look_sam(validation.non_negative("rho", rho), k=2, p=p)  # any k > 1: a refresh keeps g_v


def _decomposed(
    rule: Rule, g: Vector, gradient_at: Callable[[Vector], Vector], params: Vector
) -> tuple[Vector, Vector]:
    """Returns g_s and g_v, computed by a refresh step of LookSAM."""
    g_s, state, _ = rule.transform(g, gradient_at, params, rule.init(params), refresh=True)
    assert isinstance(state, LookSAMState)
    return g_s, state.g_v


def _change(old: Vector, new: Vector, known: jax.Array) -> Change:
    norm, _, absolute, cosine = _compared(new, old)
    nan = jnp.full_like(norm, jnp.nan)
    numbers = (jnp.where(known, x, nan) for x in (absolute, pytree.divide(absolute, norm), cosine))
    return Change(norm, *numbers)


def _prediction(predicted: Vector, measured: Vector) -> Prediction:
    norm, measured_norm, error, cosine = _compared(predicted, measured)
    infinite = (measured_norm == 0) & (error > 0)
    relative = jnp.where(infinite, jnp.full_like(error, jnp.inf), pytree.divide(error, measured_norm))
    return Prediction(norm, error, relative, cosine)


def _compared(x: Vector, y: Vector) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Returns ‖x‖, ‖y‖, ‖x − y‖ and the cosine between x and y, which is 0 where one of them is 0."""
    dtype = pytree.accumulator(x)
    x, y = pytree.cast(x, dtype), pytree.cast(y, dtype)
    x_squared, dot = pytree.squared_norm_and_dot(x, y, dtype)
    x_norm, y_norm = jnp.sqrt(x_squared), jnp.sqrt(pytree.squared_norm(y, dtype))
    distance = jnp.sqrt(pytree.squared_norm(jax.tree.map(jnp.subtract, x, y), dtype))
    cosine = jnp.clip(pytree.divide(pytree.divide(dot, x_norm), y_norm), -1.0, 1.0)
    return x_norm, y_norm, distance, cosine
