"""A loss of many examples in the memory of a few: value, gradient and products with the Hessian, chunk by chunk."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from looksam import arguments
from looksam.rules.batching import scanned_mean

Loss = Callable[..., jax.Array]  # loss(params, *batch), a mean over the examples


def chunked_loss(loss: Loss, size: int) -> Loss:
    """Returns the same loss, computed on ``size`` examples at a time.

    The examples are on the first axis of every array of the batch; the last chunk may be smaller. Numbers change by
    rounding alone. A gradient accumulates that of each chunk, and a product with the Hessian (``jax.jvp`` of
    ``jax.grad``) likewise, so that the memory of both is that of one chunk. It has gradients with respect to ``params``
    only, and cannot be differentiated in forward mode on its own, as ``jax.custom_vjp`` in general.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from looksam.analysis import chunked_loss
      >>> loss = chunked_loss(lambda w, x: jnp.mean((x - w) ** 2), size=2)
      >>> value, grad = jax.value_and_grad(loss)(1.0, jnp.array([1.0, 2.0, 3.0, 6.0, 6.0]))
      >>> print(f"{value:.1f} {grad:.1f}")  # (0 + 1 + 4 + 25 + 25) / 5, and its slope
      11.0 -5.2
    """
    size = arguments.whole("size", size)
    value_and_grad = jax.value_and_grad(loss)

    @jax.custom_vjp
    def chunked(params: Any, *batch: Any) -> jax.Array:
        mean: jax.Array = _mean(loss, size, params, batch)
        return mean

    def forward(params: Any, *batch: Any) -> tuple[jax.Array, tuple[Any, tuple[None, ...]]]:
        value, g = _mean(value_and_grad, size, params, batch)
        return value, (g, (None,) * len(batch))

    def backward(saved: tuple[Any, tuple[None, ...]], scale: jax.Array) -> tuple[Any, ...]:
        g, no_gradients = saved
        return jax.tree.map(lambda x: x * scale.astype(x.dtype), g), *no_gradients

    chunked.defvjp(forward, backward)
    return chunked


def _mean(function: Callable[..., Any], size: int, params: Any, batch: Sequence[Any]) -> Any:
    """The mean of ``function(params, *chunk)``, a pytree of means, over all examples."""
    count = len(jax.tree.leaves(tuple(batch))[0])
    whole, rest = divmod(count, size)
    if count <= size:
        return function(params, *batch)
    first, last = (jax.tree.map(lambda x, part=part: x[part], tuple(batch)) for part in _slices(whole * size))
    mean = scanned_mean(function, whole, None, "chunks")(params, *first)
    if not rest:
        return mean
    share = rest / count
    return jax.tree.map(lambda a, b: a * (1 - share) + b * share, mean, function(params, *last))


def _slices(middle: int) -> tuple[slice, slice]:
    return slice(middle), slice(middle, None)
