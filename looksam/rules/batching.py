"""A batch cut into equal parts: one after another to save memory, or side by side to climb each on its own."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def accumulated(
    value_and_grad: Callable[..., Any], microbatches: int, batch_argnums: Sequence[int] | None = None
) -> Callable[..., Any]:
    """``value_and_grad`` over a whole batch, in the memory of a part of it.

    The batch is worked in ``microbatches`` equal parts, one after another, and every number returned (value, auxiliary
    output, gradient) is the mean over the parts, summed in float32 or wider. A rule that is given this function sees
    one batch: g, ε and g_s are those of all of it.

    Args:
      value_and_grad: ``value_and_grad(params, *args)``, from ``jax.value_and_grad``, of a loss that is a mean over the
        batch. Its auxiliary output, if any, has to be means too.
      microbatches: how many parts; each of the batch's axes has to be a multiple of it.
      batch_argnums: which of ``args`` carry the batch, on their first axis; by default all.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w, x: jnp.mean((x - w) ** 2)
      >>> whole = jax.value_and_grad(loss)
      >>> parts = looksam.accumulated(whole, microbatches=2)
      >>> value, grad = parts(1.0, jnp.array([1.0, 2.0, 3.0, 6.0]))
      >>> print(value, grad)  # (0 + 1 + 4 + 25) / 4, and its slope
      7.5 -4.0
    """
    check_count("microbatches", microbatches)
    if microbatches == 1:
        return value_and_grad

    def over_parts(params: Any, *args: Any) -> Any:
        parts, axes = split(args, microbatches, batch_argnums, "microbatches")
        carried = [part for part, axis in zip(parts, axes, strict=True) if axis == 0]

        def of(batch: Sequence[Any]) -> Any:
            rest = iter(batch)
            return value_and_grad(params, *(next(rest) if a == 0 else x for x, a in zip(args, axes, strict=True)))

        def add(total: Any, batch: Sequence[Any]) -> tuple[Any, None]:
            return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, of(batch)), None

        like = jax.eval_shape(of, jax.tree.map(lambda x: x[0], carried))
        check_means(like, "microbatches")
        # made like the batch, the zeros may differ from device to device inside shard_map, as the sums do
        rows = jax.tree.leaves(carried)[0]
        zeros = jax.tree.map(lambda s: lax.full_like(rows, 0, shape=s.shape, dtype=_wide(s.dtype)), like)
        total, _ = lax.scan(add, zeros, carried)
        return jax.tree.map(lambda t, s: (t / microbatches).astype(s.dtype), total, like)

    return over_parts


def mean_over_groups(
    function: Callable[..., Any], groups: int, batch_argnums: Sequence[int] | None = None
) -> Callable[..., Any]:
    """``function(*args)`` of each of ``groups`` equal parts of the batch, side by side; the mean of what they give."""

    def over_groups(*args: Any) -> Any:
        parts, axes = split(args, groups, batch_argnums, "groups")
        each = jax.vmap(function, in_axes=axes)(*parts)
        check_means(each, "groups")
        return jax.tree.map(lambda x: jnp.mean(x, axis=0, dtype=_wide(x.dtype)).astype(x.dtype), each)

    return over_groups


def split(
    args: Sequence[Any], count: int, batch_argnums: Sequence[int] | None, what: str
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """The arguments, those with a batch cut into (count, b / count, …), and for each the axis of the parts or None."""
    numbers = range(len(args)) if batch_argnums is None else batch_argnums
    for number in numbers:
        if not 0 <= number < len(args):
            raise ValueError(f"batch_argnums has {number}, and there are {len(args)} arguments after params.")

    def cut(number: int, x: Any) -> Any:
        shape = jnp.shape(x)
        if not shape or shape[0] % count:
            problem = "has no axis" if not shape else f"has {shape[0]} rows, no multiple of {count},"
            raise ValueError(
                f"argument {number} {problem} to cut into {what}={count} parts; pass a batch that divides, "
                "or leave the argument out of batch_argnums."
            )
        return jnp.reshape(x, (count, shape[0] // count, *shape[1:]))

    parts = [jax.tree.map(lambda x, i=i: cut(i, x), a) if i in numbers else a for i, a in enumerate(args)]
    return tuple(parts), tuple(0 if i in numbers else None for i in range(len(args)))


def check_count(name: str, count: Any) -> None:
    if isinstance(count, bool | np.bool_) or not isinstance(count, int | np.integer):
        raise TypeError(f"{name}={count!r} is not an int; pass how many equal parts the batch is cut into, e.g. 4.")
    if count < 1:
        raise ValueError(f"{name}={count} is out of range; pass {name} >= 1.")


def check_means(tree: Any, what: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"with {what}, what value_and_grad returns is averaged, and its {jax.tree_util.keystr(path)} is "
                f"{leaf.dtype}; return means of the batch, as floats."
            )


def _wide(dtype: Any) -> Any:
    return jnp.float64 if dtype == jnp.float64 else jnp.float32
