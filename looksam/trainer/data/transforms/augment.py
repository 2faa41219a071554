"""Transforms of a batch on its way to the model: crop and flip, normalisation, label smoothing, Mixup.

All are pure functions of a key and the batch, for use inside jit; their settings are Python numbers, checked when the
function is traced. The usual order is crop and flip, RandAugment (both on uint8), normalisation, Mixup.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from looksam.trainer.data.transforms.randaugment import check_images
from looksam.trainer.keys import per_image


def random_crop_flip(key: jax.Array, images: jax.Array, *, padding: int = 4) -> jax.Array:
    """Pads with zeros, crops to the old size at a random position, and flips left and right with probability 1/2.

    Args:
      key: a PRNG key, or one per image; each image draws its own offsets, uniform over 0…2·padding, and flip.
      images: uint8 or floating point, (b, h, w, c). Zero is black in uint8 images, the mean in normalised ones.
      padding: pixels on each side, ≥ 0; 0 flips only.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> images = jnp.arange(6, dtype=jnp.uint8).reshape(2, 1, 3, 1)
      >>> random_crop_flip(jax.random.key(1), images, padding=0)[..., 0].tolist()
      [[[0, 1, 2]], [[5, 4, 3]]]
    """
    check_images(images, jnp.uint8, jnp.floating)
    if isinstance(padding, bool) or not isinstance(padding, int | np.integer):
        raise TypeError(f"padding={padding!r} is not an int; pass the pixels to add on each side, e.g. 4.")
    if padding < 0:
        raise ValueError(f"padding={padding} is out of range; pass padding >= 0 (0 flips only).")
    b, h, w, c = images.shape

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_offset, key_flip = jax.random.split(key)
        offsets = jax.random.randint(key_offset, (2,), 0, 2 * padding + 1, dtype=jnp.int32)
        return offsets, jax.random.bernoulli(key_flip, jnp.float32(0.5), (1, 1, 1))

    offsets, flip = jax.vmap(draw)(per_image(key, b))
    padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))

    def crop(image: jax.Array, offset: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (offset[0], offset[1], jnp.int32(0)), (h, w, c))

    cropped = jax.vmap(crop)(padded, offsets)
    return jnp.where(flip, cropped[:, :, ::-1], cropped)


def normalize(images: jax.Array, mean: ArrayLike, std: ArrayLike, dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Returns (images / 255 − mean) / std, computed in float32, or float64 if ``dtype`` is, and rounded to it.

    Args:
      images: uint8 (b, h, w, c).
      mean: the mean of images / 255 over the training set, one number or one per channel.
      std: the standard deviation, > 0, likewise.
      dtype: the dtype of the result.
    """
    check_images(images, jnp.uint8)
    for name, values in (("mean", mean), ("std", std)):
        if np.shape(values) not in ((), (1,), images.shape[-1:]):
            raise ValueError(
                f"{name} has shape {np.shape(values)}, and images {images.shape}; "
                f"pass one number, or one for each of the {images.shape[-1]} channels."
            )
    if not isinstance(std, jax.core.Tracer) and not np.all(np.asarray(std) > 0):
        raise ValueError(f"std={std} is out of range; pass std > 0 (1 for a channel that is constant).")
    wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
    scaled = images.astype(wide) / 255
    return ((scaled - jnp.asarray(mean, wide)) / jnp.asarray(std, wide)).astype(dtype)


def one_hot_smoothed(labels: jax.Array, num_classes: int, smoothing: float = 0.0) -> jax.Array:
    """Returns (1 − smoothing) one_hot(labels) + smoothing / num_classes, float32 (…, num_classes).

    A label outside 0…num_classes − 1 has no hot class and is not detected here: check labels where they are read.

    Example:
      >>> import jax.numpy as jnp
      >>> one_hot_smoothed(jnp.array([1]), 4, smoothing=0.5).tolist()
      [[0.125, 0.625, 0.125, 0.125]]
    """
    if not jnp.issubdtype(jnp.result_type(labels), jnp.integer):
        raise TypeError(f"labels have dtype {jnp.result_type(labels).name}; pass integer class numbers.")
    if isinstance(num_classes, bool) or not isinstance(num_classes, int | np.integer) or num_classes < 1:
        raise ValueError(f"num_classes={num_classes!r} is not an int >= 1; pass the number of classes.")
    if not 0 <= _static_number("smoothing", smoothing) < 1:
        raise ValueError(f"smoothing={smoothing} is out of range; pass 0 <= smoothing < 1, e.g. 0.1.")
    hits = jnp.asarray(labels, jnp.int32)[..., None] == jnp.arange(num_classes, dtype=jnp.int32)
    off = smoothing / num_classes
    return jnp.where(hits, jnp.float32(1 - smoothing + off), jnp.float32(off))


def mixup(key: jax.Array, images: jax.Array, targets: jax.Array, alpha: float) -> tuple[jax.Array, jax.Array]:
    """Returns λ x_i + (1 − λ) x_j and λ y_i + (1 − λ) y_j, with one λ ~ Beta(alpha, alpha) for the whole batch.

    Images 0 and 1, 2 and 3, … are partners; in an odd batch the last one stays unchanged. The order of the data is
    already random, so the pairs are as random as those of a permutation; but a permutation has to gather a batch that
    is split over devices, while this moves nothing and gives the same result for any even part of the batch.

    Args:
      key: a PRNG key, for λ.
      images: floating point (b, h, w, c), normalised.
      targets: floating point (b, classes), e.g. from ``one_hot_smoothed``.
      alpha: ≥ 0; 0 returns the batch unchanged, small values hardly change most batches, 1 draws λ uniformly.

    Reference:
      Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018, whose code also draws one λ per batch, but
      the partners by a permutation.
    """
    check_images(images, jnp.floating)
    if not jnp.issubdtype(jnp.result_type(targets), jnp.floating) or targets.shape[:1] != images.shape[:1]:
        raise ValueError(
            f"targets are {jnp.result_type(targets).name} of shape {targets.shape}; "
            f"pass floating-point targets ({images.shape[0]}, classes), e.g. from one_hot_smoothed."
        )
    if not 0 <= _static_number("alpha", alpha) < math.inf:
        raise ValueError(f"alpha={alpha} is out of range; pass a finite alpha >= 0 (0 leaves the batch unchanged).")
    if alpha == 0:
        return images, targets
    weight = jax.random.beta(key, alpha, alpha, dtype=jnp.float32)
    return _mix(weight, images), _mix(weight, targets)


def _mix(weight: jax.Array, x: jax.Array) -> jax.Array:
    own, other = weight.astype(x.dtype), (1 - weight).astype(x.dtype)
    even = x.shape[0] - x.shape[0] % 2
    pairs = x[:even].reshape(-1, 2, *x.shape[1:])
    mixed = (own * pairs + other * pairs[:, ::-1]).reshape(even, *x.shape[1:])
    return jnp.concatenate([mixed, x[even:]])


def _static_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}={value!r} is not a number; pass a Python number, static under jit.")
    return float(value)
