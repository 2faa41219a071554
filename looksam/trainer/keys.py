"""Randomness for each image of a batch from a key of its own.

What is drawn for an image then depends on the step and on its place in the global batch alone: not on the devices the
batch is spread over, nor on the micro-batches it is cut into.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def per_image(key: jax.Array, count: int, start: ArrayLike = 0) -> jax.Array:
    """A key for each of ``count`` images, the first being number ``start``; keys that are one each are kept.

    Example:
      >>> import jax
      >>> batch, half = per_image(jax.random.key(0), 4), per_image(jax.random.key(0), 2, start=2)
      >>> bool((jax.random.key_data(batch[2:]) == jax.random.key_data(half)).all())
      True
    """
    if key.ndim == 0:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count, dtype=jnp.int32) + jnp.int32(start))
    if key.shape != (count,):
        raise ValueError(f"key has shape {key.shape}; pass one key, or one for each of {count} images.")
    return key
