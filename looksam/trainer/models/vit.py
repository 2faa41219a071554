"""Vision Transformers: pre-norm, GELU, learned position embeddings, by default without a class token.

The head is one linear layer on the mean token. LookSAM's paper lists 87M, 88M, 22M and 23M parameters and 196 or 49
tokens, so there is no class token; one linear layer gives 86.57M, 88.22M, 22.05M and 22.88M, and the pre-logits layer
that the ViT paper trains from scratch would give 87.16M, 88.81M (89M, not 88M), 22.20M and 23.03M.

Public weights mostly have a class token, on which the head acts, and the exact GELU: ``pooling="token"`` and
``gelu="exact"``. The class token is then the first, and the first row of the position embeddings is its own.

As in the ViT authors' code, GELU is the tanh approximation, dense layers are initialized Xavier-uniform and position
embeddings with standard deviation 0.02. Unlike there, the head does not start at zero, so that every layer has a
gradient from the first step on.

Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from looksam.trainer.models import layers, options
from looksam.trainer.models.functional import MakeModule, Mode, wide_dtype
from looksam.trainer.models.layers import Dropout, LayerNorm, head, mean_over_positions


@dataclass(frozen=True)
class ViTConfig:
    """The sizes and rates of a ViT, checked."""

    image: tuple[int, int, int]
    patch: int
    width: int
    depth: int
    heads: int
    hidden: int
    dropout: float
    stochastic_depth: float
    class_token: bool
    approximate_gelu: bool
    dtype: jnp.dtype

    @property
    def tokens(self) -> int:
        return (self.image[0] // self.patch) * (self.image[1] // self.patch) + self.class_token


class Attention(nnx.Module):
    """Multi-head self-attention on activations (batch · tokens, width)."""

    def __init__(self, config: ViTConfig, rngs: nnx.Rngs):
        self.query = _dense(config.width, config.width, config, rngs)
        self.key = _dense(config.width, config.width, config, rngs)
        self.value = _dense(config.width, config.width, config, rngs)
        self.out = _dense(config.width, config.width, config, rngs)
        self.per_head = config.tokens, config.heads, config.width // config.heads

    def __call__(self, x: jax.Array) -> jax.Array:
        query, key, value = (layer(x).reshape(-1, *self.per_head) for layer in (self.query, self.key, self.value))
        query = query * (1 / math.sqrt(self.per_head[-1]))
        scores = jnp.einsum("nqhd,nkhd->nhqk", query, key)
        weights = jax.nn.softmax(scores.astype(wide_dtype(x.dtype)), axis=-1).astype(x.dtype)
        return self.out(jnp.einsum("nhqk,nkhd->nqhd", weights, value).reshape(x.shape))


class EncoderBlock(nnx.Module):
    """An encoder block: x + attention(norm(x)), then x + mlp(norm(x)); a branch may be dropped for a whole image."""

    def __init__(self, config: ViTConfig, drop_path: float, rngs: nnx.Rngs):
        self.norm1 = LayerNorm(config.width, dtype=config.dtype)
        self.attention = Attention(config, rngs)
        self.norm2 = LayerNorm(config.width, dtype=config.dtype)
        self.up = _dense(config.width, config.hidden, config, rngs)
        self.down = _dense(config.hidden, config.width, config, rngs)
        self.dropout = Dropout(config.dropout)
        self.drop_path = Dropout(drop_path, whole_image=True)
        self.approximate_gelu = config.approximate_gelu

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        def branch(y: jax.Array) -> jax.Array:
            return self.drop_path(self.dropout(y, mode), mode)

        x = x + branch(self.attention(self.norm1(x)))
        hidden = jax.nn.gelu(self.up(self.norm2(x)), approximate=self.approximate_gelu)
        return x + branch(self.down(self.dropout(hidden, mode)))


class ViT(nnx.Module):
    """Patch embedding, encoder blocks, norm and head.

    Tokens are kept as (batch · tokens, width) between layers: a weight's gradient then contracts one axis, which is a
    fifth faster on CPU.
    """

    def __init__(self, config: ViTConfig, num_classes: int, rngs: nnx.Rngs):
        self.embed = _dense(config.patch**2 * config.image[2], config.width, config, rngs)
        start = layers.normal(0.02)(rngs.params(), (config.tokens, config.width), wide_dtype(config.dtype))
        self.position = nnx.Param(start)
        self.token = nnx.data(nnx.Param(jnp.zeros(config.width, jnp.float32)) if config.class_token else None)
        self.dropout = Dropout(config.dropout)
        # Huang et al. 2016: the rate grows linearly with depth, to its full value at the last block.
        rates = [config.stochastic_depth * (i + 1) / config.depth for i in range(config.depth)]
        self.blocks = nnx.List([EncoderBlock(config, rate, rngs) for rate in rates])
        self.norm = LayerNorm(config.width, dtype=config.dtype)
        self.head = head(config.width, num_classes, dtype=config.dtype, rngs=rngs)
        self.config = config

    def __call__(self, images: jax.Array, mode: Mode) -> jax.Array:
        tokens, width = self.config.tokens, self.config.width
        x = self.embed(_patches(images, self.config.patch)).reshape(images.shape[0], -1, width)
        if self.token is not None:
            token = jnp.broadcast_to(self.token[...].astype(x.dtype), (x.shape[0], 1, width))
            x = jnp.concatenate([token, x], 1)
        x = self.dropout(x + self.position[...].astype(x.dtype), mode).reshape(-1, width)
        for block in self.blocks:
            x = block(x, mode)
        x = self.norm(x).reshape(-1, tokens, width)
        return self.head(mean_over_positions(x) if self.token is None else x[:, 0].astype(wide_dtype(x.dtype)))


def _dense(n_in: int, n_out: int, config: ViTConfig, rngs: nnx.Rngs) -> nnx.Linear:
    xavier = layers.uniform(math.sqrt(6 / (n_in + n_out)))
    wide = wide_dtype(config.dtype)
    return nnx.Linear(n_in, n_out, dtype=config.dtype, param_dtype=wide, kernel_init=xavier, rngs=rngs)


def _patches(images: jax.Array, patch: int) -> jax.Array:
    """Returns (batch · tokens, patch · patch · channels): patches in reading order, each row by row."""
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
    pooling: str = "mean",
    gelu: str = "tanh",
) -> MakeModule:
    """Returns the builder of a ViT; the defaults are a small one for 32² images (64 tokens, 2.7M parameters).

    ``pooling`` is what the head acts on, "mean" for the mean token or "token" for a class token; ``gelu`` is "tanh" for
    the approximation or "exact".
    """
    patch, width = options.positive_integer("patch", patch), options.positive_integer("width", width)
    depth, heads = options.positive_integer("depth", depth), options.positive_integer("heads", heads)
    options.divides("patch", patch, "the image's height", image_shape[0])
    options.divides("patch", patch, "the image's width", image_shape[1])
    options.divides("heads", heads, "width", width)
    hidden = options.positive_integer(
        "width * mlp_ratio, rounded,", round(width * options.positive("mlp_ratio", mlp_ratio))
    )
    rates = options.rate("dropout", dropout), options.rate("stochastic_depth", stochastic_depth)
    choices = options.one_of("pooling", pooling, ("mean", "token")), options.one_of("gelu", gelu, ("tanh", "exact"))
    config = ViTConfig(
        image_shape, patch, width, depth, heads, hidden, *rates, choices[0] == "token", choices[1] == "tanh", dtype
    )
    return lambda rngs: ViT(config, num_classes, rngs)
