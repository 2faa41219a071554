"""The loss along lines and over planes through the weights.

Random directions are filter-normalised (Li et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018), so
that networks whose weights differ in scale can be compared.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from looksam.analysis.hessian import Loss
from looksam.rules import pytree
from looksam.rules.perturbation import steepest
from looksam.rules.pytree import Vector


def filter_normalized(direction: Any, params: Any) -> Any:
    """Returns ``direction`` with each filter scaled to the norm of the same filter of ``params``.

    In a parameter of two or more axes, a filter is everything with one index of the last axis, which in Flax is the
    output: a column of a dense kernel (in, out), or the (height, width, in) of one output of a convolution. Embeddings
    (tokens, width) are treated alike, as ``width`` filters. The direction is 0 in parameters of fewer axes (biases, and
    the scales and shifts of norms), and in a filter whose weights, or whose direction, are 0.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import filter_normalized
      >>> params = {"kernel": jnp.array([[3.0, 0.0], [4.0, 2.0]]), "bias": jnp.ones(2)}
      >>> direction = {"kernel": jnp.array([[1.0, 8.0], [0.0, 0.0]]), "bias": jnp.ones(2)}
      >>> print({name: x.tolist() for name, x in filter_normalized(direction, params).items()})
      {'bias': [0.0, 0.0], 'kernel': [[5.0, 2.0], [0.0, 0.0]]}
    """
    return jax.tree.map(_scaled, direction, params)


def random_direction(key: jax.Array, params: Any) -> Any:
    """Returns a Gaussian direction, filter-normalised."""
    flat, unflatten = ravel_pytree(pytree.cast(params, pytree.accumulator(params)))
    drawn = unflatten(jax.random.normal(key, flat.shape, flat.dtype))
    return pytree.cast_like(filter_normalized(drawn, params), params)


def unit_direction(direction: Any) -> Any:
    """Returns direction/‖direction‖ over the whole vector, so that positions along a gradient or g_v are distances.

    It is 0 where the direction is 0.
    """
    dtype = pytree.accumulator(direction)
    return pytree.cast_like(steepest(pytree.cast(direction, dtype), 2.0, dtype), direction)


def landscape_line(loss: Loss, params: Any, direction: Any, at: ArrayLike) -> jax.Array:
    """Returns L(w + t d) for each t in ``at``, evaluated one after another.

    Example:
      >>> import jax.numpy as jnp
      >>> from looksam.analysis import landscape_line
      >>> w, d = jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0])
      >>> print(landscape_line(lambda w: jnp.sum(w**2), w, d, [-1.0, 0.0, 1.0]))
      [5. 1. 5.]
    """
    dtype = pytree.accumulator(params)
    losses: jax.Array = lax.map(lambda t: loss(_moved(params, (t, direction))), _axis("at", at, dtype))
    return losses


def landscape_plane(
    loss: Loss, params: Any, x_direction: Any, y_direction: Any, x: ArrayLike, y: ArrayLike
) -> jax.Array:
    """Returns L(w + x_j d_x + y_i d_y) at [i, j]: one row per y and one column per x, one point after another."""
    dtype = pytree.accumulator(params)
    across, up = _axis("x", x, dtype), _axis("y", y, dtype)

    def at(point: tuple[jax.Array, jax.Array]) -> jax.Array:
        return loss(_moved(params, (point[0], x_direction), (point[1], y_direction)))

    columns, rows = jnp.meshgrid(across, up)
    losses: jax.Array = lax.map(at, (columns.ravel(), rows.ravel()))
    return losses.reshape(columns.shape)


def _scaled(direction: jax.Array, weights: jax.Array) -> jax.Array:
    if jnp.ndim(weights) < 2:
        return jnp.zeros_like(direction)
    dtype = pytree.accumulator((direction, weights))
    ratio = pytree.divide(_filter_norms(weights, dtype), _filter_norms(direction, dtype))
    return (jnp.asarray(direction, dtype) * ratio).astype(jnp.result_type(direction))


def _filter_norms(x: jax.Array, dtype: Any) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(jnp.asarray(x, dtype)), axis=tuple(range(jnp.ndim(x) - 1))))


def _moved(params: Vector, *moves: tuple[jax.Array, Vector]) -> Vector:
    dtype = pytree.accumulator(params)
    moved = pytree.cast(params, dtype)
    for distance, direction in moves:
        moved = pytree.add_scaled(moved, distance, pytree.cast(direction, dtype))
    return pytree.cast_like(moved, params)


def _axis(name: str, values: ArrayLike, dtype: Any) -> jax.Array:
    axis = jnp.asarray(values, dtype)
    if axis.ndim != 1:
        raise ValueError(f"{name} has shape {axis.shape}; pass a sequence of distances, e.g. jnp.linspace(-1, 1, 21).")
    return axis
