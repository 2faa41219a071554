"""Residual networks and wide residual networks, with BatchNorm.

``resnet`` is post-activation and projects the skip connection where the shape changes. Bottlenecks are of version 1.5:
the 3×3 convolution has the stride, not the first 1×1. Images with a side above 64 get the ImageNet stem (7×7 of stride
2, then max-pooling), smaller ones the CIFAR stem (3×3).

``wide_resnet`` is WRN-depth-widen for small images: pre-activation, three stages. As in the authors' code, a block that
changes the shape projects the activated input, without a BatchNorm of its own.

References: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; Zagoruyko & Komodakis, "Wide Residual
Networks", BMVC 2016.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from looksam.trainer.models import options
from looksam.trainer.models.functional import MakeModule, Mode
from looksam.trainer.models.layers import BatchNorm, Dropout, conv, head, mean_over_positions

SMALL_SIDE = 64  # images up to this size get the CIFAR stem
EXPANSION = 4  # the ratio of a bottleneck's output channels to its inner ones
WIDE_STEM = 16  # channels of a wide ResNet's first convolution, and of its first stage before widening


class ConvNorm(nnx.Module):
    """A convolution followed by BatchNorm."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        size: int,
        stride: int = 1,
        *,
        zero_scale: bool = False,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.conv = conv(n_in, n_out, size, stride, dtype=dtype, rngs=rngs)
        self.norm = BatchNorm(n_out, dtype=dtype, zero_scale=zero_scale)

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        return self.norm(self.conv(x), mode)


class ResidualBlock(nnx.Module):
    """A residual block, relu(skip(x) + units(x)), with a ReLU after each unit but the last.

    The units are two 3×3 convolutions, or 1×1, 3×3 and 1×1 in a bottleneck.
    """

    def __init__(
        self,
        n_in: int,
        width: int,
        stride: int,
        *,
        bottleneck: bool,
        zero_init: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        n_out = width * EXPANSION if bottleneck else width
        plan = (
            [(n_in, width, 1, 1), (width, width, 3, stride), (width, n_out, 1, 1)]
            if bottleneck
            else [(n_in, width, 3, stride), (width, n_out, 3, 1)]
        )
        last = len(plan) - 1
        self.units = nnx.List(
            [ConvNorm(*p, zero_scale=zero_init and i == last, dtype=dtype, rngs=rngs) for i, p in enumerate(plan)]
        )
        changes = stride > 1 or n_in != n_out
        self.skip = nnx.data(ConvNorm(n_in, n_out, 1, stride, dtype=dtype, rngs=rngs) if changes else None)

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        skip = x if self.skip is None else self.skip(x, mode)
        for unit in self.units[:-1]:
            x = jax.nn.relu(unit(x, mode))
        return jax.nn.relu(skip + self.units[-1](x, mode))


class ResNet(nnx.Module):
    """A stem, stages of blocks (each after the first halves the image and doubles the width), and a head."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        blocks: tuple[int, ...],
        width: int,
        bottleneck: bool,
        zero_init: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.large = max(image_shape[:2]) > SMALL_SIDE
        size, stride = (7, 2) if self.large else (3, 1)
        self.stem = ConvNorm(image_shape[2], width, size, stride, dtype=dtype, rngs=rngs)
        make = functools.partial(ResidualBlock, bottleneck=bottleneck, zero_init=zero_init, dtype=dtype, rngs=rngs)
        residual, n_in = [], width
        for stage, count in enumerate(blocks):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                inner = width * 2**stage
                residual.append(make(n_in, inner, stride))
                n_in = inner * EXPANSION if bottleneck else inner
        self.blocks = nnx.List(residual)
        self.head = head(n_in, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        x = jax.nn.relu(self.stem(x, mode))
        if self.large:
            x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for block in self.blocks:
            x = block(x, mode)
        return self.head(mean_over_positions(x))


def resnet(
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: Any,
    *,
    blocks: tuple[int, ...] = (2, 2, 2),
    width: int = 16,
    bottleneck: bool = False,
    zero_init: bool = False,
) -> MakeModule:
    """Returns the builder of a ResNet; the defaults are a small one for 32² images (0.2M parameters).

    ``blocks`` has the number of residual blocks of each stage, ``width`` is the first stage's. ``zero_init`` sets the
    last BatchNorm scale of each block to 0 at the start, so that a block starts as its skip connection.
    """
    counts = options.positive_integers("blocks", blocks)
    if not counts:
        raise ValueError("blocks=() has no stage; pass the blocks of each stage, e.g. blocks=(2, 2, 2).")
    make = functools.partial(
        ResNet,
        blocks=counts,
        width=options.positive_integer("width", width),
        bottleneck=options.flag("bottleneck", bottleneck),
        zero_init=options.flag("zero_init", zero_init),
        dtype=dtype,
    )
    return lambda rngs: make(image_shape, num_classes, rngs=rngs)


class WideBlock(nnx.Module):
    """A pre-activation block, skip + conv2(dropout(relu(norm2(conv1(a))))) with a = relu(norm1(x))."""

    def __init__(self, n_in: int, n_out: int, stride: int, *, dropout: float, dtype: jnp.dtype, rngs: nnx.Rngs):
        self.norm1 = BatchNorm(n_in, dtype=dtype)
        self.conv1 = conv(n_in, n_out, 3, stride, dtype=dtype, rngs=rngs)
        self.norm2 = BatchNorm(n_out, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.conv2 = conv(n_out, n_out, 3, 1, dtype=dtype, rngs=rngs)
        changes = stride > 1 or n_in != n_out
        self.skip = nnx.data(conv(n_in, n_out, 1, stride, dtype=dtype, rngs=rngs) if changes else None)

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        active = jax.nn.relu(self.norm1(x, mode))
        skip = x if self.skip is None else self.skip(active)
        y = jax.nn.relu(self.norm2(self.conv1(active), mode))
        return skip + self.conv2(self.dropout(y, mode))


class WideResNet(nnx.Module):
    """A 3×3 stem, three stages of blocks, BatchNorm and ReLU, and a head."""

    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        blocks: int,
        widen: int,
        dropout: float,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.stem = conv(channels, WIDE_STEM, 3, 1, dtype=dtype, rngs=rngs)
        residual, n_in = [], WIDE_STEM
        for stage in range(3):
            n_out = WIDE_STEM * widen * 2**stage
            for i in range(blocks):
                stride = 2 if stage > 0 and i == 0 else 1
                residual.append(WideBlock(n_in, n_out, stride, dropout=dropout, dtype=dtype, rngs=rngs))
                n_in = n_out
        self.blocks = nnx.List(residual)
        self.norm = BatchNorm(n_in, dtype=dtype)
        self.head = head(n_in, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, mode)
        return self.head(mean_over_positions(jax.nn.relu(self.norm(x, mode))))


def wide_resnet(
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: Any,
    *,
    depth: int = 10,
    widen: int = 2,
    dropout: float = 0.0,
) -> MakeModule:
    """Returns the builder of a WRN-depth-widen; the defaults are a small one (0.3M parameters)."""
    depth, widen, dropout = (
        options.positive_integer("depth", depth),
        options.positive_integer("widen", widen),
        options.rate("dropout", dropout),
    )
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth={depth} is not 6n + 4 with n >= 1; pass e.g. 10, 16, 22, 28 or 40.")
    blocks, channels = (depth - 4) // 6, image_shape[2]
    return lambda rngs: WideResNet(
        channels, num_classes, blocks=blocks, widen=widen, dropout=dropout, dtype=dtype, rngs=rngs
    )
