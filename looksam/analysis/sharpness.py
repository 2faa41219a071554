"""How much the loss rises in a ball around the weights.

The largest rise, max L(w + ε) − L(w) over ‖ε‖_p ≤ ρ, is not known for a network. What is here are rises that are
reached by climbing, so each is at most the largest.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from looksam.analysis import checks
from looksam.rules import vector
from looksam.rules.batching import split
from looksam.rules.perturbation import steepest
from looksam.rules.vector import Scalar, Vector

Loss = Callable[[Any], jax.Array]


def one_step_sharpness(loss: Loss, params: Any, rho: ArrayLike, p: float = 2.0) -> jax.Array:
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
    return loss(_moved(params, jnp.asarray(rho, dtype), climb, dtype)) - value


def ascent_sharpness(
    loss: Loss, params: Any, rho: ArrayLike, steps: int, p: float = 2.0, step_size: ArrayLike | None = None
) -> jax.Array:
    """The best rise that ``steps`` steps of projected gradient ascent within the ball reach.

    ε_0 = 0 and ε_(j+1) = P(ε_j + η d(∇L(w + ε_j))), with d the unit step of the p-norm that climbs fastest and P the
    nearest point of the ball. The result is max over j = 1 … steps of L(w + ε_j) − L(w), so it never falls as ``steps``
    grows. It is negative where every step overshot; the largest rise is then at least 0, that of ε = 0.

    Args:
      loss: ``loss(params)``, a scalar.
      params: w, a pytree.
      rho: radius of the ball, ≥ 0.
      steps: how many, each one gradient; 1 is ``one_step_sharpness`` with the default step.
      p: norm of the ball, 2 or ``float("inf")``: for others the nearest point has no closed form.
      step_size: η > 0, by default ρ.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import ascent_sharpness
      >>> loss = lambda w: w[0] ** 2 + 9 * w[1] ** 2
      >>> w = jnp.array([1.0, 0.01])
      >>> [f"{ascent_sharpness(loss, w, 1.0, steps):.2f}" for steps in (1, 3, 30)]
      ['3.07', '5.09', '9.30']
    """
    checks.non_negative("rho", rho)
    count, project = checks.whole("steps", steps), _projection(p)
    dtype = vector.accumulator(params)
    radius = jnp.asarray(rho, dtype)
    if step_size is not None:
        checks.positive("step_size", step_size)
    stride = radius if step_size is None else jnp.asarray(step_size, dtype)

    def climbed(epsilon: Vector, g: Vector) -> Vector:
        return project(vector.add_scaled(epsilon, stride, steepest(vector.cast(g, dtype), p, dtype)), radius, dtype)

    def step(carry: tuple[Vector, Scalar], _: None) -> tuple[tuple[Vector, Scalar], None]:
        epsilon, best = carry
        value, g = jax.value_and_grad(loss)(_moved(params, one, epsilon, dtype))
        return (climbed(epsilon, g), jnp.maximum(best, value)), None

    one = jnp.ones((), dtype)
    start, g = jax.value_and_grad(loss)(params)
    first = climbed(jax.tree.map(lambda x: jnp.zeros_like(x, dtype), params), g)
    (last, best), _ = lax.scan(step, (first, jnp.full_like(start, -jnp.inf)), length=count - 1)
    return jnp.maximum(best, loss(_moved(params, one, last, dtype))) - start


def m_sharpness(
    loss: Callable[..., jax.Array],
    params: Any,
    batch: Sequence[Any],
    rho: ArrayLike,
    m: int,
    steps: int = 1,
    p: float = 2.0,
) -> jax.Array:
    """The mean, over groups of m examples, of the rise that each group's own loss takes by its own ascent.

    ``steps=1`` is the one step of SAM; more climb on as ``ascent_sharpness`` does. m = the whole batch is that batch's
    sharpness. The groups are worked one after another.

    Args:
      loss: ``loss(params, *batch)``, a mean over the examples.
      batch: pytrees with the examples on their first axis; rows 0 … m − 1 are the first group.
      m: examples in a group; it has to divide the batch.

    Reference:
      Foret et al., ICLR 2021, section 4.1, who take m as the images of one accelerator.
    """
    checks.whole("steps", steps)
    groups = _groups(batch, checks.whole("m", m))
    parts, _ = split(tuple(batch), groups, None, "groups")

    def rise(part: Sequence[Any]) -> jax.Array:
        return ascent_sharpness(lambda w: loss(w, *part), params, rho, steps, p)

    return jnp.mean(lax.map(rise, parts))


def _moved(params: Vector, factor: Scalar, direction: Vector, dtype: DTypeLike) -> Vector:
    return vector.cast_like(vector.add_scaled(vector.cast(params, dtype), factor, direction), params)


def _projection(p: float) -> Callable[[Vector, Scalar, DTypeLike], Vector]:
    """(ε, ρ, accumulator) -> the nearest point of the ball."""
    if p == 2:
        return _onto_sphere
    if p == math.inf:
        return lambda epsilon, rho, dtype: jax.tree.map(lambda x: jnp.clip(x, -rho, rho), epsilon)
    raise ValueError(f"p={p!r} has no projection here; pass p=2.0 or p=float('inf').")


def _onto_sphere(epsilon: Vector, rho: Scalar, dtype: DTypeLike) -> Vector:
    norm = jnp.sqrt(vector.squared_norm(epsilon, dtype))
    return vector.scale(jnp.minimum(jnp.ones_like(norm), vector.divide(rho, norm)), epsilon)  # 0 stays 0


def _groups(batch: Sequence[Any], m: int) -> int:
    rows = {jnp.shape(x)[:1] for x in jax.tree.leaves(tuple(batch))}
    if len(rows) != 1 or () in rows:
        raise ValueError(f"the parts of the batch have first axes {sorted(rows)}; pass arrays with one row an example.")
    [(count,)] = rows
    if count % m:
        raise ValueError(f"m={m} does not divide the {count} examples of the batch; pass an m that does.")
    return count // m
