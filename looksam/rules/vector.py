"""A pytree of arrays, read as one long vector.

Every norm and dot product of the rules is taken here, over all leaves at once, in float32 or wider.
"""

import functools
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
    return jnp.float64 if wide else jnp.float32


def is_narrower(tree: Vector, dtype: DTypeLike) -> bool:
    """Does any leaf hold fewer bits than ``dtype``?"""
    return any(jnp.finfo(jnp.result_type(x)).bits < jnp.finfo(dtype).bits for x in jax.tree.leaves(tree))


def cast(tree: Vector, dtype: DTypeLike) -> Vector:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def cast_like(tree: Vector, like: Vector) -> Vector:
    """Round each leaf to the dtype of its twin in ``like``."""
    return jax.tree.map(lambda x, y: _rounded(x, jnp.result_type(y)), tree, like)


def _rounded(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    # A bare cast may be undone by XLA where the value is cast back (it allows excess precision), and a
    # float16 overflow would then go unseen by the norm that guards it. reduce_precision always stays.
    to = jnp.finfo(dtype)
    if to.bits < jnp.finfo(x.dtype).bits:
        x = lax.reduce_precision(x, exponent_bits=to.nexp, mantissa_bits=to.nmant)
    return x.astype(dtype)


def scale(factor: Scalar, x: Vector) -> Vector:
    return jax.tree.map(lambda leaf: factor * leaf, x)


def add_scaled(x: Vector, factor: Scalar, y: Vector) -> Vector:
    """``x + factor * y``."""
    return jax.tree.map(lambda a, b: a + factor * b, x, y)


def where(condition: Scalar, x: Vector, y: Vector) -> Vector:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def zero_unless(condition: Scalar, x: Vector) -> Vector:
    return jax.tree.map(lambda a: jnp.where(condition, a, jnp.zeros_like(a)), x)


def total(leaf_sums: Any, dtype: DTypeLike) -> Scalar:
    """Sum of one scalar per leaf (0 for an empty tree)."""
    return sum(jax.tree.leaves(leaf_sums), start=jnp.zeros((), dtype))


def squared_norm(x: Vector, dtype: DTypeLike) -> Scalar:
    """‖x‖² over the whole vector, accumulated in ``dtype``."""
    return total(jax.tree.map(lambda a: jnp.sum(jnp.square(jnp.asarray(a, dtype))), x), dtype)


def squared_norm_and_dot(x: Vector, y: Vector, dtype: DTypeLike) -> tuple[Scalar, Scalar]:
    """‖x‖² and ⟨x, y⟩ in one pass over both, accumulated in ``dtype``."""
    leaves = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    pairs = [_leaf_sums(jnp.asarray(a, dtype), jnp.asarray(b, dtype)) for a, b in leaves]
    return total([square for square, _ in pairs], dtype), total([product for _, product in pairs], dtype)


def _leaf_sums(x: jax.Array, y: jax.Array) -> tuple[Scalar, Scalar]:
    if x.ndim < 2:
        return jnp.sum(x * x), jnp.sum(x * y)
    # A reduction of two operands, rows first. As two plain sums, XLA's CPU back end writes x * y to memory, which
    # costs more than all else in a step of a large model on a small batch.
    zero = jnp.zeros((), x.dtype)
    rows = lax.reduce((x * x, x * y), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (x.ndim - 1,))
    return jnp.sum(rows[0]), jnp.sum(rows[1])


def largest(x: Vector, dtype: DTypeLike) -> Scalar:
    """Max |x|, and 0 for an empty vector."""
    tops = jax.tree.map(lambda a: jnp.max(jnp.abs(a), initial=0.0), x)
    return functools.reduce(jnp.maximum, jax.tree.leaves(tops), jnp.zeros((), dtype))


def divide(numerator: Scalar, denominator: Scalar) -> Scalar:
    """``numerator / denominator``, and 0 where the denominator is 0 (a vector of norm 0 has no direction)."""
    there = denominator > 0
    # The division comes last: XLA does not repeat it in whatever uses the result, nor the sums it is made from.
    safe = jnp.where(there, denominator, jnp.ones_like(denominator))
    return jnp.where(there, numerator, jnp.zeros_like(numerator)) / safe
