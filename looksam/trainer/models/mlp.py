"""The multi-layer perceptron, on the flattened image."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from looksam.trainer.models import layers, options
from looksam.trainer.models.functional import MakeModule, Mode, wide_dtype
from looksam.trainer.models.layers import head


class MLP(nnx.Module):
    """A linear layer and a ReLU for each hidden width, then a linear layer to the classes."""

    def __init__(self, sizes: tuple[int, ...], num_classes: int, *, dtype: jnp.dtype, rngs: nnx.Rngs):
        pairs = itertools.pairwise(sizes)
        self.hidden = nnx.List([_dense(n_in, n_out, dtype=dtype, rngs=rngs) for n_in, n_out in pairs])
        self.head = head(sizes[-1], num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, mode: Mode) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.head(x)


def _dense(n_in: int, n_out: int, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> nnx.Linear:
    he = layers.normal(math.sqrt(2 / n_in))
    return nnx.Linear(n_in, n_out, dtype=dtype, param_dtype=wide_dtype(dtype), kernel_init=he, rngs=rngs)


def mlp(
    image_shape: tuple[int, int, int], num_classes: int, dtype: Any, *, widths: tuple[int, ...] = (128, 128, 128)
) -> MakeModule:
    """Returns the builder of an MLP; ``widths`` are those of the hidden layers, and () is logistic regression."""
    height, width, channels = image_shape
    sizes = (height * width * channels, *options.positive_integers("widths", widths))
    return lambda rngs: MLP(sizes, num_classes, dtype=dtype, rngs=rngs)
