"""Random keys for the images of a batch, one each.

What is drawn for an image thus depends only on the step and on its position in the whole batch, not on how the batch is
split over devices and micro-batches. Models, augmentation and the training step share this one function.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def per_image(key: jax.Array, count: int, start: ArrayLike = 0) -> jax.Array:
    """Returns one key for each of ``count`` images, the first of which has position ``start`` in the batch.

    ``key`` is a single key; an array of ``count`` keys is returned as it is.

    Example:
      >>> import jax
      >>> batch, half = per_image(jax.random.key(0), 4), per_image(jax.random.key(0), 2, start=2)
      >>> bool((jax.random.key_data(batch[2:]) == jax.random.key_data(half)).all())
      True
    """
    if key.ndim == 0:
        return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count, dtype=jnp.int32) + jnp.int32(start))
    if key.shape != (count,):
        raise ValueError(f"key has shape {key.shape}; pass a single key, or one for each of the {count} images.")
    return key
