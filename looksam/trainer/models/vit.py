"""Vision Transformers: pre-norm, GELU, learnt positions, no class token.

The head is one linear layer on the mean token. The paper's table names 87M, 88M, 22M and 23M parameters and 196 or 49
tokens (so no class token); one linear layer gives 86.57M, 88.22M, 22.05M and 22.88M, and the pre-logits layer of the
original from-scratch setting would give 87.16M, 88.81M (89M, not 88M), 22.20M and 23.03M.

As in the original's code, GELU is the tanh form, dense layers start Xavier-uniform and positions with deviation 0.02.
The head does not start at zero, as it does there: every layer then has a gradient from the first step.

Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from looksam.trainer.models import checks, layers
from looksam.trainer.models.functional import MakeModule, Mode, wide
from looksam.trainer.models.layers import Dropout, LayerNorm, head, mean_position


@dataclass(frozen=True)
class Shape:
    """The numbers a ViT is made from, checked."""

    image: tuple[int, int, int]
    patch: int
    width: int
    depth: int
    heads: int
    hidden: int
    dropout: float
    stochastic_depth: float
    dtype: jnp.dtype

    @property
    def tokens(self) -> int:
        return (self.image[0] // self.patch) * (self.image[1] // self.patch)


class Attention(nnx.Module):
    """Multi-head self-attention on (batch · tokens, width)."""

    def __init__(self, shape: Shape, rngs: nnx.Rngs):
        self.query = _dense(shape.width, shape.width, shape, rngs)
        self.key = _dense(shape.width, shape.width, shape, rngs)
        self.value = _dense(shape.width, shape.width, shape, rngs)
        self.out = _dense(shape.width, shape.width, shape, rngs)
        self.per_head = shape.tokens, shape.heads, shape.width // shape.heads

    def __call__(self, x: jax.Array) -> jax.Array:
        query, key, value = (layer(x).reshape(-1, *self.per_head) for layer in (self.query, self.key, self.value))
        query = query * (1 / math.sqrt(self.per_head[-1]))
        scores = jnp.einsum("nqhd,nkhd->nhqk", query, key)
        weights = jax.nn.softmax(scores.astype(wide(x.dtype)), axis=-1).astype(x.dtype)
        return self.out(jnp.einsum("nhqk,nkhd->nqhd", weights, value).reshape(x.shape))


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); either branch may be dropped for a whole image."""

    def __init__(self, shape: Shape, drop_path: float, rngs: nnx.Rngs):
        self.norm1 = LayerNorm(shape.width, dtype=shape.dtype)
        self.attention = Attention(shape, rngs)
        self.norm2 = LayerNorm(shape.width, dtype=shape.dtype)
        self.up = _dense(shape.width, shape.hidden, shape, rngs)
        self.down = _dense(shape.hidden, shape.width, shape, rngs)
        self.dropout = Dropout(shape.dropout)
        self.drop_path = Dropout(drop_path, whole_image=True)

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        def branch(y: jax.Array) -> jax.Array:
            return self.drop_path(self.dropout(y, mode), mode)

        x = x + branch(self.attention(self.norm1(x)))
        hidden = jax.nn.gelu(self.up(self.norm2(x)), approximate=True)
        return x + branch(self.down(self.dropout(hidden, mode)))


class ViT(nnx.Module):
    """Patches to tokens, blocks, norm, head. Tokens are kept as (batch · tokens, width) between layers:
    a weight's gradient then contracts one axis, which is a fifth faster on CPU.
    """

    def __init__(self, shape: Shape, num_classes: int, rngs: nnx.Rngs):
        self.embed = _dense(shape.patch**2 * shape.image[2], shape.width, shape, rngs)
        start = layers.normal(0.02)(rngs.params(), (shape.tokens, shape.width), jnp.float32)
        self.position = nnx.Param(start)
        self.dropout = Dropout(shape.dropout)
        # Huang et al. 2016: the rate grows linearly with depth, to its full value at the last block.
        rates = [shape.stochastic_depth * (i + 1) / shape.depth for i in range(shape.depth)]
        self.blocks = nnx.List([Block(shape, rate, rngs) for rate in rates])
        self.norm = LayerNorm(shape.width, dtype=shape.dtype)
        self.head = head(shape.width, num_classes, dtype=shape.dtype, rngs=rngs)
        self.shape = shape

    def __call__(self, images: jax.Array, mode: Mode) -> jax.Array:
        tokens, width = self.shape.tokens, self.shape.width
        x = self.embed(_patches(images, self.shape.patch))
        x = x.reshape(-1, tokens, width) + self.position[...].astype(x.dtype)
        x = self.dropout(x, mode).reshape(-1, width)
        for block in self.blocks:
            x = block(x, mode)
        return self.head(mean_position(self.norm(x).reshape(-1, tokens, width)))


def _dense(n_in: int, n_out: int, shape: Shape, rngs: nnx.Rngs) -> nnx.Linear:
    xavier = layers.uniform(math.sqrt(6 / (n_in + n_out)))
    return nnx.Linear(n_in, n_out, dtype=shape.dtype, kernel_init=xavier, rngs=rngs)


def _patches(images: jax.Array, patch: int) -> jax.Array:
    """(batch · tokens, patch · patch · channels), patches in reading order, each row by row."""
    n, height, width, channels = images.shape
    grid = images.reshape(n, height // patch, patch, width // patch, patch, channels)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(-1, patch * patch * channels)


def vit(
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: Any,
    *,
    patch: int = 4,
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
    mlp_ratio: float = 4.0,
    dropout: float = 0.0,
    stochastic_depth: float = 0.0,
) -> MakeModule:
    """Any ViT; the defaults are a desk size for 32² images (64 tokens, 2.7M parameters)."""
    patch, width = checks.whole("patch", patch), checks.whole("width", width)
    depth, heads = checks.whole("depth", depth), checks.whole("heads", heads)
    checks.divides("patch", patch, "the image's height", image_shape[0])
    checks.divides("patch", patch, "the image's width", image_shape[1])
    checks.divides("heads", heads, "width", width)
    hidden = checks.whole("width * mlp_ratio, rounded,", round(width * checks.positive("mlp_ratio", mlp_ratio)))
    rates = checks.rate("dropout", dropout), checks.rate("stochastic_depth", stochastic_depth)
    shape = Shape(image_shape, patch, width, depth, heads, hidden, *rates, dtype)
    return lambda rngs: ViT(shape, num_classes, rngs)
