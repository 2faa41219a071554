"""A batch in equal parts: micro-batches that save memory, and groups that are perturbed separately (m-sharpness).

Both are means over parts of the batch, computed one after another (``scanned_mean``) or side by side
(``vmapped_mean``).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from looksam import arguments
from looksam.rules.pytree import Vector

Function = Callable[..., Any]  # function(params, *args) -> a pytree of floats, means over the batch in ``args``
Mean = Callable[[Function, int, Sequence[int] | None, str], Function]
Groups = int | Literal["device"]


def accumulated(value_and_grad: Function, microbatches: int, batch_argnums: Sequence[int] | None = None) -> Function:
    """Returns ``value_and_grad`` of a whole batch, computed in the memory of a part of it.

    The batch is processed in ``microbatches`` equal parts, one after another, and every number returned (value,
    auxiliary output, gradient) is the mean over the parts, summed in float32 or wider. A rule that is given this
    function sees one batch: g, ε and g_s are those of all of it.

    Args:
      value_and_grad: ``value_and_grad(params, *args)``, from ``jax.value_and_grad``, of a loss that is a mean over the
        batch. Its auxiliary output, if any, has to be means too.
      microbatches: the number of parts; the batch size has to be a multiple of it.
      batch_argnums: which of ``args`` carry the batch, on their first axis; by default all.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w, x: jnp.mean((x - w) ** 2)
      >>> whole = jax.value_and_grad(loss)
      >>> in_parts = looksam.accumulated(whole, microbatches=2)
      >>> value, grad = in_parts(1.0, jnp.array([1.0, 2.0, 3.0, 6.0]))
      >>> print(value, grad)  # (0 + 1 + 4 + 25) / 4, and its slope
      7.5 -4.0
    """
    return scanned_mean(value_and_grad, arguments.whole("microbatches", microbatches), batch_argnums, "microbatches")


def group_gradients(
    value_and_grad: Function,
    perturb: Callable[[Vector, Vector], Vector],
    groups: int,
    batch_argnums: Sequence[int] | None = None,
    *,
    mean: Mean | None = None,
) -> Function:
    """Returns ``gradients(params, *args) -> (value, g, g_s)``: m-sharpness, m being the examples of a group.

    Each of ``groups`` equal parts of the batch is perturbed along its own gradient; value, g and g_s are the means over
    the groups.

    Args:
      value_and_grad: as for ``accumulated``.
      perturb: ``perturb(g, params)``, the perturbed parameters of a group with gradient g.
      groups: the number of parts; the batch size has to be a multiple of it.
      batch_argnums: as for ``accumulated``.
      mean: how the groups are processed: ``vmapped_mean`` (the default) side by side, ``scanned_mean`` one after
        another.
    """

    def in_group(params: Vector, *args: Any) -> tuple[Any, Vector, Vector]:
        value, g = value_and_grad(params, *args)
        return value, g, value_and_grad(perturb(g, params), *args)[1]

    return (mean or vmapped_mean)(in_group, groups, batch_argnums, "groups")


def group_count(groups: Groups) -> int:
    """Returns the number of groups; with ``"device"`` one per device of the mesh in use, or else of all devices."""
    if groups != "device":
        return int(groups)
    mesh = jax.sharding.get_abstract_mesh()
    return jax.device_count() if mesh.empty else mesh.size


def scanned_mean(function: Function, parts: int, batch_argnums: Sequence[int] | None, name: str) -> Function:
    """Returns the mean of ``function`` over equal parts of the batch, one after another; ``name`` is for messages."""
    if parts == 1:
        return function

    def mean(params: Any, *args: Any) -> Any:
        cut, axes = split(args, parts, batch_argnums, name)
        batches = [part for part, axis in zip(cut, axes, strict=True) if axis == 0]

        def of(batch: Sequence[Any]) -> Any:
            rest = iter(batch)
            return function(params, *(next(rest) if a == 0 else x for x, a in zip(args, axes, strict=True)))

        def add(total: Any, batch: Sequence[Any]) -> tuple[Any, None]:
            return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, of(batch)), None

        like = jax.eval_shape(of, jax.tree.map(lambda x: x[0], batches))
        _check_means(like, name)
        # Made like the batch, the zeros may differ from device to device inside shard_map, as the sums do.
        rows = jax.tree.leaves(batches)[0]
        zeros = jax.tree.map(lambda s: lax.full_like(rows, 0, shape=s.shape, dtype=_wide(s.dtype)), like)
        total, _ = lax.scan(add, zeros, batches)
        return jax.tree.map(lambda t, s: (t / parts).astype(s.dtype), total, like)

    return mean


def vmapped_mean(function: Function, parts: int, batch_argnums: Sequence[int] | None, name: str) -> Function:
    """Returns the mean of ``function`` over equal parts of the batch, side by side; ``name`` is for messages."""

    def mean(params: Any, *args: Any) -> Any:
        cut, axes = split(args, parts, batch_argnums, name)
        each = jax.vmap(functools.partial(function, params), in_axes=axes)(*cut)
        _check_means(each, name)
        return jax.tree.map(lambda x: jnp.mean(x, axis=0, dtype=_wide(x.dtype)).astype(x.dtype), each)

    return mean


def split(
    args: Sequence[Any], parts: int, batch_argnums: Sequence[int] | None, name: str
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Reshapes the arguments that carry the batch to (parts, b / parts, …); also returns their axis of parts or None.

    ``name``, the name of the caller's argument that set ``parts``, is for messages.
    """
    numbers = range(len(args)) if batch_argnums is None else batch_argnums
    for number in numbers:
        if not 0 <= number < len(args):
            raise ValueError(f"batch_argnums has {number}, and there are {len(args)} arguments after params.")

    def cut(number: int, x: Any) -> Any:
        shape = jnp.shape(x)
        if not shape or shape[0] % parts:
            problem = "has no axis" if not shape else f"has {shape[0]} rows, not a multiple of {parts},"
            raise ValueError(
                f"argument {number} {problem} to split into {name}={parts} parts; pass a batch size that divides, "
                "or leave the argument out of batch_argnums."
            )
        return jnp.reshape(x, (parts, shape[0] // parts, *shape[1:]))

    cut_args = [jax.tree.map(lambda x, i=i: cut(i, x), a) if i in numbers else a for i, a in enumerate(args)]
    return tuple(cut_args), tuple(0 if i in numbers else None for i in range(len(args)))


def _check_means(tree: Any, name: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"with {name}, the outputs of value_and_grad are averaged, and its {jax.tree_util.keystr(path)} is "
                f"{leaf.dtype}; return means over the batch, as floats."
            )


def _wide(dtype: Any) -> Any:
    return jnp.float64 if dtype == jnp.float64 else jnp.float32
