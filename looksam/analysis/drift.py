"""How fast the parts of the SAM gradient change from step to step.

The paper (its figure of "difference of gradients between every 5 steps") plots ‖g_x^t − g_x^(t+k)‖ with k = 5 for
x = s, h, v along training. ``absolute`` below is that number. Ours are the drift of g itself, the relative drift and
the cosine.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from looksam.analysis import checks
from looksam.rules import look_sam, vector
from looksam.rules.vector import Vector


class Components(NamedTuple):
    """One entry for each vector of a SAM step: the vectors themselves, or what is known of each."""

    g: Any  # the gradient at w
    g_s: Any  # the gradient at w + ε
    g_h: Any  # the part of g_s along g, g_s − g_v
    g_v: Any  # the part of g_s orthogonal to g; 0 where it is only rounding, as in the rules


class Change(NamedTuple):
    """From x(t − lag) to x(t). NaN, but for the norm, in the first ``lag`` steps."""

    norm: jax.Array  # ‖x(t)‖
    absolute: jax.Array  # ‖x(t) − x(t − lag)‖
    relative: jax.Array  # the same over ‖x(t)‖: the error if the old one is taken for the new; 0 where ‖x(t)‖ is 0
    cosine: jax.Array  # between the two; 0 where one of them is 0


class DriftState(NamedTuple):
    count: jax.Array  # type: ignore[assignment]  # steps seen
    ring: Components  # each leaf (lag, *shape): the last ``lag`` steps, step t at t % lag


class Drift(NamedTuple):
    """``init(params) -> state`` and ``update(state, components) -> (state, changes)``, from ``make_drift``."""

    init: Callable[[Vector], DriftState]
    update: Callable[[DriftState, Components], tuple[DriftState, Components]]


def components(loss: Callable[[Any], jax.Array], params: Any, rho: ArrayLike, p: float = 2.0) -> Components:
    """g, g_s, g_h and g_v of one SAM step, by the very projection of the rules: g_s = g_h + g_v, g_v ⊥ g.

    Where g_s is not finite the rules fall back to g, and so do these: g_s = g, g_v = 0.

    Args:
      loss: ``loss(params)``; close it over the minibatch of the step.
      params: w, a pytree.
      rho: radius of the ball, ≥ 0.
      p: its norm, 1 < p ≤ ∞.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import components
      >>> parts = components(lambda w: w[0] ** 2 + 3 * w[1] ** 2, jnp.array([1.0, 1.0]), rho=0.1)
      >>> print(*(f"{x:.3f}" for x in parts.g_s), *(f"{x:.3f}" for x in parts.g_v))
      2.063 6.569 -0.114 0.038
    """
    checks.non_negative("rho", rho)
    rule = look_sam(rho, k=2, p=p)  # any k > 1: a refresh keeps g_v
    gradient = jax.grad(loss)
    g = gradient(params)
    g_s, state, _ = rule.transform(g, gradient, params, rule.init(params), refresh=True)
    return Components(g, g_s, jax.tree.map(jnp.subtract, g_s, state.g_v), state.g_v)


def make_drift(lag: int = 5) -> Drift:
    """The drift over ``lag`` steps, step after step.

    ``update`` takes the components of the next step and gives a ``Change`` for each. It is jitted, and uses up the
    state that it is given: the ring, 4 · lag copies of the parameters, is written in place. Feed it with each step's
    own minibatch to do as the paper does, or with one fixed batch to see the change of the weights alone.

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
    length = checks.whole("lag", lag)

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


def _change(old: Vector, new: Vector, known: jax.Array) -> Change:
    dtype = vector.accumulator(new)
    old, new = vector.cast(old, dtype), vector.cast(new, dtype)
    new_squared, along = vector.squared_norm_and_dot(new, old, dtype)
    norm, old_norm = jnp.sqrt(new_squared), jnp.sqrt(vector.squared_norm(old, dtype))
    absolute = jnp.sqrt(vector.squared_norm(jax.tree.map(jnp.subtract, new, old), dtype))
    cosine = jnp.clip(vector.divide(vector.divide(along, norm), old_norm), -1.0, 1.0)
    nan = jnp.full_like(norm, jnp.nan)
    numbers = (jnp.where(known, x, nan) for x in (absolute, vector.divide(absolute, norm), cosine))
    return Change(norm, *numbers)
