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
from jax.typing import DTypeLike

from looksam.trainer.keys import per_image

FILL = 128  # the grey of pixels that a warp reads from outside of the image
FRACTION_BITS = 16  # of the fixed-point numbers in a warp's matrix
LARGEST_IMAGE = 2**22  # pixels; the sum of their grey values, doubled, still fits in 31 bits


def check_images(images: jax.Array, *dtypes: DTypeLike) -> None:
    """Raises, already while tracing, unless images have rank 4 and one of the dtypes (or kinds, as jnp.floating)."""
    shape, dtype = jnp.shape(images), jnp.result_type(images)
    if len(shape) != 4:
        raise ValueError(f"images have shape {shape}; pass a batch (batch, height, width, channels).")
    if not any(jnp.issubdtype(dtype, wanted) for wanted in dtypes):
        names = " or ".join(getattr(wanted, "__name__", str(wanted)) for wanted in dtypes)
        raise TypeError(f"images have dtype {dtype.name}, and this takes {names}; convert them, or change the order.")


def warp(images: jax.Array, matrices: jax.Array) -> jax.Array:
    """Warps images: output pixel (x, y) is the input pixel nearest to (ax + by + c, dx + ey + f), or grey outside.

    Args:
      images: uint8 (b, h, w, c).
      matrices: int32 (b, 6), the numbers a to f in fixed point: times 2**FRACTION_BITS. x counts columns, y rows.
    """
    b, h, w, c = images.shape
    x, y = jnp.arange(w, dtype=jnp.int32), jnp.arange(h, dtype=jnp.int32)[:, None]
    m = matrices[:, :, None, None]
    half = 1 << (FRACTION_BITS - 1)
    column = (m[:, 0] * x + m[:, 1] * y + m[:, 2] + half) >> FRACTION_BITS
    row = (m[:, 3] * x + m[:, 4] * y + m[:, 5] + half) >> FRACTION_BITS
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    source = jnp.where(inside, row * w + column, 0).reshape(b, h * w, 1)
    pixels = jnp.take_along_axis(images.reshape(b, h * w, c), source, axis=1, mode="promise_in_bounds")
    return jnp.where(inside[..., None], pixels.reshape(images.shape), jnp.uint8(FILL))


def look_up(images: jax.Array, tables: jax.Array) -> jax.Array:
    """Maps each channel of each image through its own table; uint8 (b, h, w, c) and (b, c, 256)."""

    def channel(pixels: jax.Array, table: jax.Array) -> jax.Array:
        return table.at[pixels].get(mode="promise_in_bounds")

    return jax.vmap(jax.vmap(channel, in_axes=(-1, 0), out_axes=-1))(images, tables)


def histogram(images: jax.Array) -> jax.Array:
    """Returns how many pixels have each value, int32 (b, c, 256)."""
    b, h, w, c = images.shape

    def count(pixels: jax.Array) -> jax.Array:
        return jnp.zeros(256, jnp.int32).at[pixels].add(1, mode="promise_in_bounds")

    # One row of pixels per channel under one vmap: on a CPU 6 to 10 times as fast as two vmaps, or a stride of c.
    return jax.vmap(count)(images.transpose(0, 3, 1, 2).reshape(b * c, h * w)).reshape(b, c, 256)


def autocontrast_table(counts: jax.Array) -> jax.Array:
    """Returns the table that stretches the values in use to 0…255, ⌊255 (v − lo) / (hi − lo)⌋.

    A channel of a single value is unchanged. Pillow computes the same quotient in floating point, which may fall just
    below an integer and then be 1 less.
    """
    used = counts > 0
    lo = jnp.argmax(used, axis=-1, keepdims=True).astype(jnp.int32)
    hi = 255 - jnp.argmax(used[..., ::-1], axis=-1, keepdims=True).astype(jnp.int32)
    values = jnp.arange(256, dtype=jnp.int32)
    stretched = jnp.clip(255 * (values - lo) // jnp.maximum(hi - lo, 1), 0, 255)
    return jnp.where(hi > lo, stretched, values).astype(jnp.uint8)


def equalize_table(counts: jax.Array) -> jax.Array:
    """Returns the table that equalizes a histogram: the cumulative counts in units of a step.

    The step is (pixels below the largest value) // 255; if it is 0, the channel is unchanged.
    """
    values = jnp.arange(256, dtype=jnp.int32)
    below = jnp.cumsum(counts, axis=-1, dtype=jnp.int32) - counts  # pixels with a smaller value
    step = jnp.max(jnp.where(counts > 0, below, 0), axis=-1, keepdims=True) // 255
    table = jnp.minimum((below + step // 2) // jnp.maximum(step, 1), 255)
    return jnp.where(step > 0, table, values).astype(jnp.uint8)


def grey(images: jax.Array) -> jax.Array:
    """Returns the luma 0.299 R + 0.587 G + 0.114 B in Pillow's fixed point, uint8 (b, h, w, 1)."""
    if images.shape[-1] == 1:
        return images
    r, g, b = (images[..., i : i + 1].astype(jnp.int32) for i in range(3))
    return ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16).astype(jnp.uint8)


def mean_grey(images: jax.Array) -> jax.Array:
    """Returns the mean of ``grey``, rounded to the nearest integer, uint8 (b,)."""
    pixels = images.shape[1] * images.shape[2]
    total = jnp.sum(grey(images), axis=(1, 2, 3), dtype=jnp.int32)
    return ((2 * total + pixels) // (2 * pixels)).astype(jnp.uint8)


def smooth(rows: jax.Array, channels: int) -> jax.Array:
    """Returns the mean over 3×3 pixels in which the middle counts five times (Pillow's SMOOTH), where all nine exist.

    Takes uint8 (b, h, w · channels) and returns (b, h − 2, (w − 2) · channels): over such rows the inner loop of a CPU
    is longer than three numbers, and several times as fast.
    """
    c = channels
    x = rows.astype(jnp.int32)
    column = x[:, :-2] + x[:, 1:-1] + x[:, 2:]
    box = column[:, :, : -2 * c] + column[:, :, c:-c] + column[:, :, 2 * c :]
    return ((2 * (box + 4 * x[:, 1:-1, c:-c]) + 13) // 26).astype(jnp.uint8)  # 13 weights, rounded to nearest


def blend(degenerate: jax.Array, images: jax.Array, factor: float) -> jax.Array:
    """Returns ⌊degenerate + factor (images − degenerate)⌋, clipped to 0…255, uint8.

    Computed in fixed point with 20 bits, for factors up to 5.5; adding 2**-12 compensates for the rounded factor where
    the result is an integer. Pillow computes in float32, and for some factors its result is 1 less there.
    """
    start = degenerate.astype(jnp.int32)
    difference = images.astype(jnp.int32) - start
    mixed = ((start << 20) + round(factor * 2**20) * difference + 2**8) >> 20
    return jnp.clip(mixed, 0, 255).astype(jnp.uint8)


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
    result = look_up(warp(images, matrices), _tables(images, operation, magnitude))
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
    return np.rint(table * 2**FRACTION_BITS).astype(np.int32)


def _tables(images: jax.Array, operation: jax.Array, magnitude: float) -> jax.Array:
    """Returns the look-up table of each channel of each image, uint8 (b, c, 256)."""
    values = jnp.arange(256, dtype=jnp.uint8)
    counts = histogram(images)
    lost_bits = 8 - min(max(int(4 * magnitude / 10), 1), 8)
    threshold = int(256 * magnitude / 10)
    mean = mean_grey(images)[:, None, None]
    tables = {
        "autocontrast": autocontrast_table(counts),
        "equalize": equalize_table(counts),
        "solarize": jnp.where(values.astype(jnp.int32) < threshold, values, 255 - values),
        "posterize": (values >> lost_bits) << lost_bits,
        "contrast": blend(mean, values, _factor(magnitude)),
        "brightness": blend(jnp.zeros_like(values), values, _factor(magnitude)),
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
    color = blend(grey(images), images, _factor(magnitude))
    result = jnp.where(_is("color", operation)[:, None, None, None], color, result)
    old, new = images.reshape(b, h, w * c), result.reshape(b, h, w * c)
    inner = (slice(None), slice(1, -1), slice(c, -c))  # border pixels have no smoothed value, and stay unchanged
    sharp = blend(smooth(old, c), old[inner], _factor(magnitude))
    new = new.at[inner].set(jnp.where(_is("sharpness", operation)[:, None, None], sharp, new[inner]))
    return new.reshape(images.shape)


def _factor(magnitude: float) -> float:
    return 1.8 * magnitude / 10 + 0.1


def _is(name: str, operation: jax.Array) -> jax.Array:
    return operation == OPERATIONS.index(name)


def _check(images: jax.Array, magnitude: Any) -> None:
    check_images(images, jnp.uint8)
    _, h, w, c = images.shape
    if c not in (1, 3):
        raise ValueError(f"images have {c} channels (shape {images.shape}); pass 1 (grey) or 3 (RGB).")
    if h * w > LARGEST_IMAGE:
        raise ValueError(f"images have {h}x{w} pixels, and {LARGEST_IMAGE} is the limit; resize them first.")
    if isinstance(magnitude, bool) or not isinstance(magnitude, int | float | np.integer | np.floating):
        raise TypeError(f"magnitude={magnitude!r} is not a number; pass 0 to {LARGEST_MAGNITUDE}, static under jit.")
    if not 0 <= magnitude <= LARGEST_MAGNITUDE:
        raise ValueError(f"magnitude={magnitude} is out of range; pass 0 to {LARGEST_MAGNITUDE} (10 is full strength).")
