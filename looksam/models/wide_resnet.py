"""Wide residual networks for small images: pre-activation, three stages, WRN-depth-widen.

Reference: Zagoruyko & Komodakis, "Wide Residual Networks", BMVC 2016. As in the authors' code, a block that changes
the shape projects the activated input, without a BatchNorm of its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from looksam.models import checks
from looksam.models.layers import BatchNorm, Dropout, conv, head, mean_position
from looksam.models.mode import Mode
from looksam.models.pure import MakeModule

STEM = 16  # channels of the first convolution, and of the first stage before widening


class Block(nnx.Module):
    """skip + conv2(dropout(relu(norm2(conv1(a))))) with a = relu(norm1(x))."""

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
    """3×3 stem, three stages of blocks, BatchNorm and ReLU, head."""

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
        self.stem = conv(channels, STEM, 3, 1, dtype=dtype, rngs=rngs)
        made, n_in = [], STEM
        for stage in range(3):
            n_out = STEM * widen * 2**stage
            for i in range(blocks):
                stride = 2 if stage > 0 and i == 0 else 1
                made.append(Block(n_in, n_out, stride, dropout=dropout, dtype=dtype, rngs=rngs))
                n_in = n_out
        self.blocks = nnx.List(made)
        self.norm = BatchNorm(n_in, dtype=dtype)
        self.head = head(n_in, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, mode)
        return self.head(mean_position(jax.nn.relu(self.norm(x, mode))))


def wide_resnet(
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: Any,
    *,
    depth: int = 10,
    widen: int = 2,
    dropout: float = 0.0,
) -> MakeModule:
    """Any WRN-depth-widen; the defaults are a desk size (0.3M parameters)."""
    depth, widen, dropout = checks.whole("depth", depth), checks.whole("widen", widen), checks.rate("dropout", dropout)
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth={depth} is not 6n + 4 with n >= 1; pass e.g. 10, 16, 22, 28 or 40.")
    blocks, channels = (depth - 4) // 6, image_shape[2]
    return lambda rngs: WideResNet(
        channels, num_classes, blocks=blocks, widen=widen, dropout=dropout, dtype=dtype, rngs=rngs
    )
