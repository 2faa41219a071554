"""The layers that the models share, and their initializers.

Parameters are float32, or float64 where a layer computes in it; ``dtype`` is the dtype of a layer's computation.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from looksam.flax_layers import Conv
from looksam.trainer.models.functional import Mode, wide_dtype

Initializer = Callable[[jax.Array, tuple[int, ...], DTypeLike], jax.Array]


def normal(deviation: float) -> Initializer:
    """Returns an initializer that draws from the normal distribution with mean 0."""
    return lambda key, shape, dtype: _flat(jax.random.normal, key, shape, dtype) * deviation


def uniform(limit: float) -> Initializer:
    """Returns an initializer that draws uniformly from [−limit, limit)."""
    return lambda key, shape, dtype: (2 * _flat(jax.random.uniform, key, shape, dtype) - 1) * limit


def _flat(draw: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    # The same numbers as a draw in the weight's own shape, but XLA's CPU back end takes three times as long or more to
    # compile a four-dimensional draw.
    return draw(key, (math.prod(shape),), dtype).reshape(shape)


MOMENTUM = 0.9  # of BatchNorm's running statistics, new = 0.9 old + 0.1 batch; the usual value
BATCH_EPSILON = 1e-5  # usual for BatchNorm in ResNets
LAYER_EPSILON = 1e-6  # usual for LayerNorm in ViTs


class BatchNorm(nnx.Module):
    """Batch normalization, y = scale (x − mean)/√(var + 1e-5) + bias per channel, statistics in float32 or wider.

    The running variance averages the batch's biased variance, as in Flax (PyTorch averages the unbiased one). We do
    not use Flax's own layer because it rounds the running statistics to bfloat16 when it computes in bfloat16, and
    fails under strict dtype promotion.
    """

    def __init__(self, features: int, *, dtype: jnp.dtype, zero_scale: bool = False):
        self.scale = nnx.Param((jnp.zeros if zero_scale else jnp.ones)(features, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(features, jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros(features, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(features, jnp.float32))
        self.dtype = dtype

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        x = x.astype(wide_dtype(self.dtype))
        running = self.mean[...].astype(x.dtype), self.var[...].astype(x.dtype)
        mean, var = running
        if mode.train:
            mean, var = _moments(x, lax.stop_gradient(mean), mode.axes)
            self.mean.set_value(_running_average(self.mean[...], mean))
            self.var.set_value(_running_average(self.var[...], var))
        # One multiply and one add per element; as (x − mean) · … the gradient costs a fifth more on CPU.
        slope = self.scale[...].astype(x.dtype) * lax.rsqrt(var + BATCH_EPSILON)
        offset = self.bias[...].astype(x.dtype) - mean * slope
        return (x * slope + offset).astype(self.dtype)


def _moments(x: jax.Array, shift: jax.Array, axes: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns the mean and the biased variance per channel over the whole batch, in one pass over x.

    The variance is E[c²] − E[c]² with c = x − shift: exact for any shift, and without cancellation for a shift near
    the mean.
    """
    centred = x - shift
    mean, square = centred.mean((0, 1, 2)), jnp.square(centred).mean((0, 1, 2))
    if axes:
        mean, square = lax.pmean((mean, square), axes)
    # Rounding can make the variance of a constant channel negative.
    return mean + shift, jnp.maximum(square - jnp.square(mean), 0)


def _running_average(running: jax.Array, batch: jax.Array) -> jax.Array:
    batch = lax.stop_gradient(batch).astype(running.dtype)
    return MOMENTUM * running + (1 - MOMENTUM) * batch


class LayerNorm(nnx.Module):
    """Layer normalization, y = scale (x − mean)/√(var + 1e-6) + bias over the last axis, in float32 or wider."""

    def __init__(self, features: int, *, dtype: jnp.dtype):
        self.scale = nnx.Param(jnp.ones(features, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(features, jnp.float32))
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(wide_dtype(self.dtype))
        centred = x - x.mean(-1, keepdims=True)
        unit = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + LAYER_EPSILON)
        return (unit * self.scale[...].astype(x.dtype) + self.bias[...].astype(x.dtype)).astype(self.dtype)


class Dropout(nnx.Module):
    """Dropout: zeroes a share ``rate`` of the activations in training and scales the rest by 1/(1 − rate).

    ``whole_image`` drops all activations of an image or none (stochastic depth). Each image draws from its own key.
    Activations may have any shape that keeps the order of the images, such as (batch · tokens, width).
    """

    def __init__(self, rate: float, *, whole_image: bool = False):
        self.rate, self.whole_image = rate, whole_image

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        if not mode.train or self.rate == 0:
            return x
        keys, kept_share = mode.next_keys(), 1 - self.rate
        rows = x.reshape(keys.shape[0], -1)
        drawn = (1,) if self.whole_image else rows.shape[1:]
        keep = jax.vmap(lambda key: jax.random.bernoulli(key, jnp.float32(kept_share), drawn))(keys)
        return jnp.where(keep, rows / jnp.asarray(kept_share, x.dtype), jnp.zeros((), x.dtype)).reshape(x.shape)


def conv(n_in: int, n_out: int, size: int, stride: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> Conv:
    """A convolution without bias (a BatchNorm follows), with the same padding on both sides.

    Initialized as by He et al., counting outputs: standard deviation √(2/(size² n_out)).
    """
    return Conv(
        n_in,
        n_out,
        (size, size),
        strides=stride,
        padding=(size - 1) // 2,
        use_bias=False,
        dtype=dtype,
        param_dtype=wide_dtype(dtype),
        kernel_init=normal(math.sqrt(2 / (size**2 * n_out))),
        rngs=rngs,
    )


def head(features: int, num_classes: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Linear:
    """The linear layer to the logits, in float32 or wider, initialized with standard deviation √(1/features)."""
    init, wide = normal(math.sqrt(1 / features)), wide_dtype(dtype)
    return nnx.Linear(features, num_classes, dtype=wide, param_dtype=wide, kernel_init=init, rngs=rngs)


def mean_over_positions(x: jax.Array) -> jax.Array:
    """Returns the mean over positions, (batch, ..., features) to (batch, features), in float32 or wider."""
    return x.astype(wide_dtype(x.dtype)).mean(tuple(range(1, x.ndim - 1)))
