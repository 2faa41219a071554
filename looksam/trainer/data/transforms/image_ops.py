"""Operations on the pixels of a batch of images (b, h, w, c): warps, look-up tables, blends, and their parts.

Every function works on the whole batch at once, each image with its own parameters, and uses integers wherever the
result is rounded, so that it does not depend on the back end. Rounding is Pillow's unless a docstring says otherwise.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

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
