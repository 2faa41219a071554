"""Arithmetic on a pytree of arrays as if it were one long vector.

Every norm and dot product of the rules is computed here, over all leaves at once, in float32 or wider.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

Vector = Any  # a pytree of floating-point arrays
Scalar = jax.Array


def accumulator(tree: Vector) -> DTypeLike:
    """The dtype in which norms of ``tree`` accumulate: float32, or float64 if any leaf has it."""
    wide = any(jnp.result_type(x) == jnp.float64 for x in jax.tree.leaves(tree))
    dtype: DTypeLike = jnp.float64 if wide else jnp.float32
    return dtype


def is_narrower(tree: Vector, dtype: DTypeLike) -> bool:
    """Returns whether any leaf has fewer bits than ``dtype``."""
    return any(jnp.finfo(jnp.result_type(x)).bits < jnp.finfo(dtype).bits for x in jax.tree.leaves(tree))


def cast(tree: Vector, dtype: DTypeLike) -> Vector:
    """Casts every leaf to ``dtype``."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def cast_like(tree: Vector, like: Vector) -> Vector:
    """Rounds each leaf to the dtype of the corresponding leaf of ``like``."""
    return jax.tree.map(lambda x, y: _rounded(x, jnp.result_type(y)), tree, like)


def _rounded(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    # XLA may remove a cast that is followed by its inverse (it allows excess precision), and the norm that guards
    # against float16 overflow would then not see it. XLA never removes reduce_precision.
    to = jnp.finfo(dtype)
    if to.bits < jnp.finfo(x.dtype).bits:
        x = lax.reduce_precision(x, exponent_bits=to.nexp, mantissa_bits=to.nmant)
    return x.astype(dtype)


def scale(factor: Scalar, x: Vector) -> Vector:
    """Returns ``factor * x``."""
    return jax.tree.map(lambda leaf: factor * leaf, x)


def add_scaled(x: Vector, factor: Scalar, y: Vector) -> Vector:
    """Returns ``x + factor * y``."""
    return jax.tree.map(lambda a, b: a + factor * b, x, y)


def where(condition: Scalar, x: Vector, y: Vector) -> Vector:
    """Returns ``x`` where the scalar ``condition`` holds, else ``y``."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def zero_unless(condition: Scalar, x: Vector) -> Vector:
    """Returns ``x`` where the scalar ``condition`` holds, else zeros."""
    return jax.tree.map(lambda a: jnp.where(condition, a, jnp.zeros_like(a)), x)


def total(leaf_sums: Any, dtype: DTypeLike) -> Scalar:
    """Sums one scalar per leaf; 0 for an empty tree."""
    return sum(jax.tree.leaves(leaf_sums), start=jnp.zeros((), dtype))


def squared_norm(x: Vector, dtype: DTypeLike) -> Scalar:
    """Returns ‖x‖² over the whole vector, accumulated in ``dtype``."""
    return total(jax.tree.map(lambda a: jnp.sum(jnp.square(jnp.asarray(a, dtype))), x), dtype)


def squared_norm_and_dot(x: Vector, y: Vector, dtype: DTypeLike) -> tuple[Scalar, Scalar]:
    """Returns ‖x‖² and ⟨x, y⟩, computed in one pass over both and accumulated in ``dtype``."""
    leaves = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    pairs = [_leaf_sums(jnp.asarray(a, dtype), jnp.asarray(b, dtype)) for a, b in leaves]
    return total([square for square, _ in pairs], dtype), total([product for _, product in pairs], dtype)


@jax.custom_jvp
def _leaf_sums(x: jax.Array, y: jax.Array) -> tuple[Scalar, Scalar]:
    if x.ndim < 2:
        return jnp.sum(x * x), jnp.sum(x * y)
    # One reduction of two operands, rows first. For two plain sums, XLA's CPU back end writes x * y to memory, which
    # costs more than everything else in a step of a large model on a small batch.
    zero = jnp.zeros((), x.dtype)
    rows = lax.reduce((x * x, x * y), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (x.ndim - 1,))
    return jnp.sum(rows[0]), jnp.sum(rows[1])


@_leaf_sums.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[Any, Any]:
    # JAX's own derivative of such a reduction raises where only one of x and y has a tangent.
    (x, y), (dx, dy) = primals, tangents
    return _leaf_sums(x, y), (2 * jnp.sum(x * dx), jnp.sum(x * dy + dx * y))


def largest(x: Vector, dtype: DTypeLike) -> Scalar:
    """Returns max |x|; 0 for an empty vector."""
    maxima = jax.tree.map(lambda a: jnp.max(jnp.abs(a), initial=0.0), x)
    return functools.reduce(jnp.maximum, jax.tree.leaves(maxima), jnp.zeros((), dtype))


def divide(numerator: Scalar, denominator: Scalar) -> Scalar:
    """Returns ``numerator / denominator``, and 0 where the denominator is 0: a vector of norm 0 has no direction."""
    positive = denominator > 0
    # The division comes last: XLA then recomputes neither it nor its sums in the operations that use the result.
    safe = jnp.where(positive, denominator, jnp.ones_like(denominator))
    return jnp.where(positive, numerator, jnp.zeros_like(numerator)) / safe


def path_string(path: tuple[Any, ...]) -> str:
    """Returns a leaf's path as text, e.g. ``"block/kernel"``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def selected(tree: Vector, keep: Sequence[bool]) -> Vector:
    """Returns the tree with None, an empty tree, in place of every leaf that is not kept; paths stay as they are."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [leaf if kept else None for leaf, kept in zip(leaves, keep, strict=True)])


def filled(part: Vector, tree: Vector, keep: Sequence[bool]) -> Vector:
    """Returns ``tree`` with the kept leaves taken from ``part``, which ``selected`` made."""
    leaves, structure = jax.tree.flatten(tree)
    new = iter(jax.tree.leaves(part))
    return jax.tree.unflatten(structure, [next(new) if kept else x for x, kept in zip(leaves, keep, strict=True)])
