"""RandAugment: a few operations per image, drawn from fourteen, all of the same magnitude.

A switch under vmap would run all fourteen operations on every image. Here each round is one warp, one table look-up
and one blend of the whole batch, whichever operations were drawn: geometric operations are affine warps, operations on
single pixels are tables of 256 values, and color and sharpness are blends with a degenerate image.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.trainer.data.transforms import image_ops
from looksam.trainer.keys import per_image

OPERATIONS = (
    "identity", "autocontrast", "equalize", "rotate", "solarize", "color", "posterize",
    "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
LARGEST_MAGNITUDE = 30


def rand_augment(key: jax.Array, images: jax.Array, *, operations: int = 2, magnitude: float = 10.0) -> jax.Array:
    """Applies RandAugment(N = operations, M = magnitude): N operations per image, drawn uniformly with replacement.

    The scale of M is that of the authors' TensorFlow code: M = 10 is full strength there, and larger values
    extrapolate linearly. s = ± 1 is drawn for each image and operation; W and H are the image's size.

    =============  ==============================================================  =======================
    operation      what it does                                                    at M = 10
    =============  ==============================================================  =======================
    rotate         by s 3 M degrees about the centre                               ± 30°
    shear_x, _y    reads x + s 0.03 M y (y + s 0.03 M x), from the upper left      ± 0.3
    translate_x    reads x + s 10 M W/224 (translate_y: y + s 10 M H/224)          ± 100 pixels of 224
    color          grey image + f (image − grey image), f = 0.1 + 0.18 M           f = 1.9
    contrast       mean grey + f (image − mean grey)                               f = 1.9
    brightness     f image                                                         f = 1.9
    sharpness      smoothed image + f (image − smoothed image)                     f = 1.9
    posterize      keeps the ⌊0.4 M⌋ highest bits, at least 1 and at most 8        4 bits
    solarize       v becomes 255 − v from v = ⌊25.6 M⌋ on                          256: nothing changes
    autocontrast   stretches each channel to 0…255                                 (independent of M)
    equalize       equalizes each channel's histogram                              (independent of M)
    identity       leaves the image unchanged                                      (independent of M)
    =============  ==============================================================  =======================

    Warps take the nearest pixel, and grey (128) where there is none.

    Args:
      key: a PRNG key, or one per image.
      images: uint8 (b, h, w, c), with c = 3 (RGB) or 1 (grey: color leaves it unchanged).
      operations: N ≥ 1.
      magnitude: 0 ≤ M ≤ 30, known when the function is traced.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> images = jnp.full((4, 8, 8, 3), 200, jnp.uint8)
      >>> jax.jit(rand_augment)(jax.random.key(0), images).shape
      (4, 8, 8, 3)

    Reference:
      Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2020. We have the
      paper's fourteen operations (the authors' code adds invert, cutout and solarize_add, and has no identity). That
      code translates by 100 pixels at every image size, where we scale with the size, and its contrast blends with a
      constant other than the mean grey, where we follow the definition (Pillow's ImageEnhance).
    """
    _check(images, magnitude)
    drawn, signs = draw_operations(key, images.shape[0], operations)

    def one_round(x: jax.Array, draw: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return apply_operations(x, *draw, magnitude=magnitude), None

    return jax.lax.scan(one_round, images, (drawn.T, signs.T))[0]


def draw_operations(key: jax.Array, batch: int, operations: int) -> tuple[jax.Array, jax.Array]:
    """Draws indices into OPERATIONS and signs ± 1 for each image, both int32 (batch, operations)."""
    if isinstance(operations, bool) or not isinstance(operations, int | np.integer):
        raise TypeError(f"operations={operations!r} is not an int; pass the number per image, e.g. 2.")
    if operations < 1:
        raise ValueError(f"operations={operations} is out of range; pass operations >= 1, or leave rand_augment out.")

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_operation, key_sign = jax.random.split(key)
        shape = (int(operations),)
        drawn = jax.random.randint(key_operation, shape, 0, len(OPERATIONS), dtype=jnp.int32)
        return drawn, 1 - 2 * jax.random.bernoulli(key_sign, jnp.float32(0.5), shape).astype(jnp.int32)

    return jax.vmap(draw)(per_image(key, batch))


def apply_operations(images: jax.Array, operation: jax.Array, sign: jax.Array, *, magnitude: float = 10.0) -> jax.Array:
    """Applies one operation to each image: one round of ``rand_augment``.

    Every image passes through the warp, the tables and the blend, of which all but its own are the identity.

    Args:
      images: as for ``rand_augment``.
      operation: int32 (b,), indices into OPERATIONS.
      sign: int32 (b,), 1 or −1; used by the geometric operations only.
      magnitude: as for ``rand_augment``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> images = jnp.array([[[[30], [100]]], [[[30], [100]]]], jnp.uint8)
      >>> operation = jnp.array([OPERATIONS.index("brightness"), OPERATIONS.index("autocontrast")])
      >>> jax.jit(apply_operations)(images, operation, jnp.array([1, 1])).ravel().tolist()
      [57, 190, 0, 255]
    """
    _check(images, magnitude)
    b, h, w, _ = images.shape
    if operation.shape != (b,) or sign.shape != (b,):
        raise ValueError(
            f"operation has shape {operation.shape} and sign {sign.shape}; pass one for each of {b} images."
        )
    matrices = jnp.asarray(_matrices(h, w, magnitude))[operation, (sign < 0).astype(jnp.int32)]
    result = image_ops.look_up(image_ops.warp(images, matrices), _tables(images, operation, magnitude))
    return _blend(images, result, operation, magnitude)


def _matrices(h: int, w: int, magnitude: float) -> np.ndarray:
    """Returns the warp of each operation, for signs + and −, in fixed point: int32 (operations, 2, 6)."""
    table = np.tile([1.0, 0, 0, 0, 1, 0], (len(OPERATIONS), 2, 1))
    for column, level in enumerate((magnitude / 10, -magnitude / 10)):
        cos, sin = math.cos(math.radians(30 * level)), math.sin(math.radians(30 * level))
        x, y = (w - 1) / 2, (h - 1) / 2  # the centre, which is fixed
        warps = {
            "rotate": [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y],
            "shear_x": [1, 0.3 * level, 0, 0, 1, 0],
            "shear_y": [1, 0, 0, 0.3 * level, 1, 0],
            "translate_x": [1, 0, 100 * level * w / 224, 0, 1, 0],
            "translate_y": [1, 0, 0, 0, 1, 100 * level * h / 224],
        }
        for name, matrix in warps.items():
            table[OPERATIONS.index(name), column] = matrix
    return np.rint(table * 2**image_ops.FRACTION_BITS).astype(np.int32)


def _tables(images: jax.Array, operation: jax.Array, magnitude: float) -> jax.Array:
    """Returns the look-up table of each channel of each image, uint8 (b, c, 256)."""
    values = jnp.arange(256, dtype=jnp.uint8)
    counts = image_ops.histogram(images)
    lost_bits = 8 - min(max(int(4 * magnitude / 10), 1), 8)
    threshold = int(256 * magnitude / 10)
    mean = image_ops.mean_grey(images)[:, None, None]
    tables = {
        "autocontrast": image_ops.autocontrast_table(counts),
        "equalize": image_ops.equalize_table(counts),
        "solarize": jnp.where(values.astype(jnp.int32) < threshold, values, 255 - values),
        "posterize": (values >> lost_bits) << lost_bits,
        "contrast": image_ops.blend(mean, values, _factor(magnitude)),
        "brightness": image_ops.blend(jnp.zeros_like(values), values, _factor(magnitude)),
    }
    drawn = jnp.stack([_is(name, operation) for name in tables], axis=-1)
    drawn = jnp.concatenate([drawn, ~jnp.any(drawn, axis=-1, keepdims=True)], axis=-1)
    stacked = jnp.stack([jnp.broadcast_to(table, counts.shape) for table in (*tables.values(), values)], axis=1)
    # A select would be fused into the look-up and computed again for every pixel, 4 times as slow on a CPU; a product
    # with 0 and 1 is not, and integers up to 255 stay exact in it even in bfloat16.
    selected = jnp.einsum("bt,btcv->bcv", drawn.astype(jnp.float32), stacked.astype(jnp.float32))
    return selected.astype(jnp.uint8)


def _blend(images: jax.Array, result: jax.Array, operation: jax.Array, magnitude: float) -> jax.Array:
    """Returns ``result`` with color and sharpness applied to the images that drew them (unchanged there so far)."""
    b, h, w, c = images.shape
    color = image_ops.blend(image_ops.grey(images), images, _factor(magnitude))
    result = jnp.where(_is("color", operation)[:, None, None, None], color, result)
    old, new = images.reshape(b, h, w * c), result.reshape(b, h, w * c)
    inner = (slice(None), slice(1, -1), slice(c, -c))  # border pixels have no smoothed value, and stay unchanged
    sharp = image_ops.blend(image_ops.smooth(old, c), old[inner], _factor(magnitude))
    new = new.at[inner].set(jnp.where(_is("sharpness", operation)[:, None, None], sharp, new[inner]))
    return new.reshape(images.shape)


def _factor(magnitude: float) -> float:
    return 1.8 * magnitude / 10 + 0.1


def _is(name: str, operation: jax.Array) -> jax.Array:
    return operation == OPERATIONS.index(name)


def _check(images: jax.Array, magnitude: Any) -> None:
    image_ops.check_images(images, jnp.uint8)
    _, h, w, c = images.shape
    if c not in (1, 3):
        raise ValueError(f"images have {c} channels (shape {images.shape}); pass 1 (grey) or 3 (RGB).")
    if h * w > image_ops.LARGEST_IMAGE:
        raise ValueError(f"images have {h}x{w} pixels, and {image_ops.LARGEST_IMAGE} is the limit; resize them first.")
    if isinstance(magnitude, bool) or not isinstance(magnitude, int | float | np.integer | np.floating):
        raise TypeError(f"magnitude={magnitude!r} is not a number; pass 0 to {LARGEST_MAGNITUDE}, static under jit.")
    if not 0 <= magnitude <= LARGEST_MAGNITUDE:
        raise ValueError(f"magnitude={magnitude} is out of range; pass 0 to {LARGEST_MAGNITUDE} (10 is full strength).")
