"""Sharpness: how much the loss rises within a radius of the weights.

The largest rise, max L(w + ε) − L(w) over ‖ε‖_p ≤ ρ, is not known for a network. The functions here return rises that
gradient ascent reaches, which are lower bounds of it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from looksam import arguments
from looksam.analysis.hessian import Loss
from looksam.rules import pytree, validation
from looksam.rules.batching import split
from looksam.rules.perturbation import steepest
from looksam.rules.pytree import Scalar, Vector


def one_step_sharpness(loss: Loss, params: Any, rho: ArrayLike, p: float = 2.0) -> jax.Array:
    """Returns L(w + ρ d(g)) − L(w), with d(g) the steepest ascent direction of p-norm 1 at w.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import one_step_sharpness
      >>> print(one_step_sharpness(lambda w: jnp.sum(w**2), jnp.array([3.0, 4.0]), rho=1.0))  # 6² - 5²
      11.0
    """
    value, g = jax.value_and_grad(loss)(params)
    dtype = pytree.accumulator(params)
    direction = steepest(pytree.cast(g, dtype), p, dtype)
    rise: jax.Array = loss(_perturbed(params, jnp.asarray(rho, dtype), direction, dtype)) - value
    return rise


def ascent_sharpness(
    loss: Loss, params: Any, rho: ArrayLike, steps: int, p: float = 2.0, step_size: ArrayLike | None = None
) -> jax.Array:
    """Returns the best rise that ``steps`` steps of projected gradient ascent within the radius reach.

    ε_0 = 0 and ε_(j+1) = P(ε_j + η d(∇L(w + ε_j))), with d the steepest ascent direction of p-norm 1 and P the
    projection onto ‖ε‖_p ≤ ρ. The result is max over j = 1 … steps of L(w + ε_j) − L(w), so it never decreases as
    ``steps`` grows. It is negative if every step overshot; the largest rise is still at least 0, that of ε = 0.

    Args:
      loss: ``loss(params)``, a scalar.
      params: w, a pytree.
      rho: radius, ≥ 0.
      steps: number of steps, each one gradient; 1 is ``one_step_sharpness`` with the default step size.
      p: norm in which the radius is measured, 2 or ``float("inf")``: others have no projection in closed form.
      step_size: η > 0, by default ρ.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import ascent_sharpness
      >>> loss = lambda w: w[0] ** 2 + 9 * w[1] ** 2
      >>> w = jnp.array([1.0, 0.01])
      >>> [f"{ascent_sharpness(loss, w, 1.0, steps):.2f}" for steps in (1, 3, 30)]
      ['3.07', '5.09', '9.30']
    """
    count = arguments.whole("steps", steps)
    state = ascent_start(loss, params, rho, p, step_size)
    step = lambda state, _: (ascent_step(loss, params, state, rho, p, step_size), None)
    state, _ = lax.scan(step, state, length=count - 1)
    return ascent_rise(loss, params, state)


class AscentState(NamedTuple):
    """The state of ``ascent_sharpness`` after a gradient."""

    epsilon: Vector  # the perturbation that this gradient has led to, not evaluated yet
    best: jax.Array  # the largest loss at the perturbations before it; -inf where there is none
    start: jax.Array  # L(w)


def ascent_start(
    loss: Loss, params: Any, rho: ArrayLike, p: float = 2.0, step_size: ArrayLike | None = None
) -> AscentState:
    """Returns the state of ``ascent_sharpness`` after its first gradient, for a loop of your own over ``ascent_step``.

    Such a loop on the host can report its progress, and its state can be saved.
    """
    ascended = _ascent(params, rho, p, step_size)
    value, g = jax.value_and_grad(loss)(params)
    zeros = jax.tree.map(lambda x: jnp.zeros_like(x, pytree.accumulator(params)), params)
    return AscentState(ascended(zeros, g), jnp.full_like(value, -jnp.inf), value)


def ascent_step(
    loss: Loss, params: Any, state: AscentState, rho: ArrayLike, p: float = 2.0, step_size: ArrayLike | None = None
) -> AscentState:
    """Takes the gradient at w + ε, and steps along it; call it once less than the number of steps."""
    dtype, ascended = pytree.accumulator(params), _ascent(params, rho, p, step_size)
    value, g = jax.value_and_grad(loss)(_perturbed(params, jnp.ones((), dtype), state.epsilon, dtype))
    return AscentState(ascended(state.epsilon, g), jnp.maximum(state.best, value), state.start)


def ascent_rise(loss: Loss, params: Any, state: AscentState) -> jax.Array:
    """Returns the best rise over L(w), with the loss at the last perturbation."""
    dtype = pytree.accumulator(params)
    last = loss(_perturbed(params, jnp.ones((), dtype), state.epsilon, dtype))
    rise: jax.Array = jnp.maximum(state.best, last) - state.start
    return rise


def _ascent(params: Any, rho: ArrayLike, p: float, step_size: ArrayLike | None) -> Callable[[Vector, Vector], Vector]:
    """Returns P(ε + η d(g)) as a function of ε and g."""
    validation.non_negative("rho", rho)
    if step_size is not None:
        validation.positive("step_size", step_size)
    dtype, project = pytree.accumulator(params), _projection(p)
    radius = jnp.asarray(rho, dtype)
    stride = radius if step_size is None else jnp.asarray(step_size, dtype)

    def ascended(epsilon: Vector, g: Vector) -> Vector:
        return project(pytree.add_scaled(epsilon, stride, steepest(pytree.cast(g, dtype), p, dtype)), radius, dtype)

    return ascended


def m_sharpness(
    loss: Callable[..., jax.Array],
    params: Any,
    batch: Sequence[Any],
    rho: ArrayLike,
    m: int,
    steps: int = 1,
    p: float = 2.0,
) -> jax.Array:
    """Returns the mean, over groups of m examples, of the sharpness of each group's own loss.

    ``steps=1`` is the one step of SAM; more are those of ``ascent_sharpness``. With m equal to the batch size it is the
    sharpness of the batch. The groups are processed one after another.

    Args:
      loss: ``loss(params, *batch)``, a mean over the examples.
      batch: pytrees with the examples on their first axis; rows 0 … m − 1 are the first group.
      m: number of examples in a group; it has to divide the batch size.

    Reference:
      Foret et al., ICLR 2021, section 4.1, who take m as the images of one accelerator.
    """
    arguments.whole("steps", steps)
    groups = _groups(batch, arguments.whole("m", m))
    parts, _ = split(tuple(batch), groups, None, "groups")

    def rise(part: Sequence[Any]) -> jax.Array:
        return ascent_sharpness(lambda w: loss(w, *part), params, rho, steps, p)

    return jnp.mean(lax.map(rise, parts))


def _perturbed(params: Vector, factor: Scalar, direction: Vector, dtype: DTypeLike) -> Vector:
    return pytree.cast_like(pytree.add_scaled(pytree.cast(params, dtype), factor, direction), params)


def _projection(p: float) -> Callable[[Vector, Scalar, DTypeLike], Vector]:
    """Returns the projection onto ‖ε‖_p ≤ ρ, as a function of (ε, ρ, accumulator)."""
    if p == 2:
        return _projected_2_norm
    if p == math.inf:
        return lambda epsilon, rho, dtype: jax.tree.map(lambda x: jnp.clip(x, -rho, rho), epsilon)
    raise ValueError(f"p={p!r} has no projection here; pass p=2.0 or p=float('inf').")


def _projected_2_norm(epsilon: Vector, rho: Scalar, dtype: DTypeLike) -> Vector:
    norm = jnp.sqrt(pytree.squared_norm(epsilon, dtype))
    return pytree.scale(jnp.minimum(jnp.ones_like(norm), pytree.divide(rho, norm)), epsilon)  # 0 stays 0


def _groups(batch: Sequence[Any], m: int) -> int:
    rows = {jnp.shape(x)[:1] for x in jax.tree.leaves(tuple(batch))}
    if len(rows) != 1 or () in rows:
        raise ValueError(
            f"the parts of the batch have first axes {sorted(rows)}; pass arrays with one row per example."
        )
    [(count,)] = rows
    if count % m:
        raise ValueError(f"m={m} does not divide the {count} examples of the batch; pass an m that does.")
    return count // m
