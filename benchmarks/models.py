"""Small models for timing, as (params, loss): plain functions, so that nothing but the step is measured."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Params = Any
Model = tuple[Params, Callable[[Params, jax.Array, jax.Array], jax.Array], tuple[jax.Array, jax.Array]]


def mlp(widths: tuple[int, ...] = (1024, 4096, 3072, 1024, 10), batch: int = 8) -> Model:
    """20M parameters at batch 8: the step is spent moving parameters, not multiplying."""
    keys = jax.random.split(jax.random.key(0), len(widths))
    pairs = list(itertools.pairwise(widths))
    params = [{"w": _normal(k, pair), "b": jnp.zeros(pair[1])} for k, pair in zip(keys, pairs, strict=False)]

    def logits(params, x):
        for layer in params[:-1]:
            x = jax.nn.gelu(x @ layer["w"] + layer["b"])
        return x @ params[-1]["w"] + params[-1]["b"]

    return params, _cross_entropy(logits), _batch((batch, widths[0]))


def vit(width: int = 128, depth: int = 4, heads: int = 4, patch: int = 4, batch: int = 16) -> Model:
    """A ViT of 0.8M parameters on 64 tokens."""
    tokens, keys = (32 // patch) ** 2, iter(jax.random.split(jax.random.key(0), 6 * depth + 3))

    def dense(n_in, n_out):
        return {"w": _normal(next(keys), (n_in, n_out)), "b": jnp.zeros(n_out)}

    def block():
        norms = {name: {"scale": jnp.ones(width), "bias": jnp.zeros(width)} for name in ("norm1", "norm2")}
        layers = {"qkv": dense(width, 3 * width), "out": dense(width, width)}
        return norms | layers | {"up": dense(width, 4 * width), "down": dense(4 * width, width)}

    params = {"embed": dense(3 * patch**2, width), "position": jnp.zeros((tokens, width))}
    params |= {"blocks": [block() for _ in range(depth)], "head": dense(width, 10)}

    def logits(params, x):
        n = x.shape[0]
        x = x.reshape(n, 32 // patch, patch, 32 // patch, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        # (batch * tokens, width) throughout: weight gradients then contract one axis
        x = _apply(params["embed"], x.reshape(n * tokens, -1)) + jnp.tile(params["position"], (n, 1))
        for b in params["blocks"]:
            qkv = _apply(b["qkv"], _norm(b["norm1"], x)).reshape(n, tokens, 3, heads, width // heads)
            mixed = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2])
            x = x + _apply(b["out"], mixed.reshape(n * tokens, width))
            x = x + _apply(b["down"], jax.nn.gelu(_apply(b["up"], _norm(b["norm2"], x))))
        return _apply(params["head"], x.reshape(n, tokens, width).mean(1))

    return params, _cross_entropy(logits), _batch((batch, 32, 32, 3))


def resnet(width: int = 16, blocks: int = 2, batch: int = 16) -> Model:
    """A ResNet of three stages with batch normalisation, 0.2M parameters."""
    keys = iter(jax.random.split(jax.random.key(0), 6 * blocks + 5))

    def conv(n_in, n_out, size=3):
        kernel = _normal(next(keys), (size, size, n_in, n_out))
        return {"w": kernel, "scale": jnp.ones(n_out), "bias": jnp.zeros(n_out)}

    params: dict[str, Any] = {"stem": conv(3, width), "stages": []}
    for stage in range(3):
        n_in, n_out = width * 2 ** max(stage - 1, 0), width * 2**stage
        first = {"conv1": conv(n_in, n_out), "conv2": conv(n_out, n_out), "skip": conv(n_in, n_out, 1)}
        rest = [{"conv1": conv(n_out, n_out), "conv2": conv(n_out, n_out)} for _ in range(blocks - 1)]
        params["stages"].append([first, *rest])
    params["head"] = {"w": _normal(next(keys), (4 * width, 10)), "b": jnp.zeros(10)}

    def unit(layer, x, stride=1):
        x = jax.lax.conv_general_dilated(
            x, layer["w"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * layer["scale"] + layer["bias"]

    def logits(params, x):
        x = jax.nn.relu(unit(params["stem"], x))
        for stage, group in enumerate(params["stages"]):
            for i, b in enumerate(group):
                stride = 2 if stage > 0 and i == 0 else 1
                skip = unit(b["skip"], x, stride) if "skip" in b else x
                x = jax.nn.relu(skip + unit(b["conv2"], jax.nn.relu(unit(b["conv1"], x, stride))))
        return _apply(params["head"], x.mean((1, 2)))

    return params, _cross_entropy(logits), _batch((batch, 32, 32, 3))


def _normal(key, shape):
    return jax.random.normal(key, shape) * math.sqrt(2 / math.prod(shape[:-1]))


def _apply(layer, x):
    return x @ layer["w"] + layer["b"]


def _norm(layer, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * layer["scale"] + layer["bias"]


def _cross_entropy(logits):
    def loss(params, x, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], 1).mean()

    return loss


def _batch(shape):
    x = jax.random.normal(jax.random.key(1), shape)
    return x, jax.random.randint(jax.random.key(2), shape[:1], 0, 10)
