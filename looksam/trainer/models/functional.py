"""Turns a Flax NNX module into two pure functions of nested plain dicts, once, when the model is built."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util
from jax.typing import DTypeLike

from looksam.trainer.keys import per_image

Params = dict[str, Any]  # nested dicts of float32 arrays; paths read like "blocks/0/attention/query/kernel"
Stats = dict[str, Any]  # BatchNorm's running statistics, in the same structure; {} for a model without BatchNorm
MakeModule = Callable[[nnx.Rngs], nnx.Module]  # the module is called as module(images, mode)


class Model(NamedTuple):
    """A model as the trainer uses it: two pure functions.

    ``init(key)`` returns (params, stats). It may be jitted, and under ``jax.eval_shape`` it allocates nothing.

    ``apply(params, stats, images, *, train, key=None, axes=())`` returns (logits, new stats). With ``train=True``
    BatchNorm uses the batch's statistics, and the new stats have moved towards them; otherwise ``stats`` are used and
    returned unchanged. All randomness comes from ``key``, a single key or one per image, so two passes with the same
    key use the same dropout masks, as SAM needs. ``axes`` names the axes of a surrounding ``shard_map`` over which the
    batch is split.
    """

    init: Callable[[jax.Array], tuple[Params, Stats]]
    apply: Callable[..., tuple[jax.Array, Stats]]


class Mode:
    """How one pass through a model runs; made by ``Model.apply`` and passed from layer to layer.

    Args:
      train: whether BatchNorm uses the batch's statistics and dropout drops.
      keys: one PRNG key per image, or None if the pass draws nothing.
      axes: mesh axes of the surrounding ``shard_map`` over which the batch is split. BatchNorm averages its statistics
        over them too.
    """

    def __init__(self, train: bool, keys: jax.Array | None = None, axes: tuple[str, ...] = ()) -> None:
        self.train, self.axes = train, axes
        self._keys, self._layers = keys, 0

    def next_keys(self) -> jax.Array:
        """Returns one key per image, different for each layer that asks."""
        assert self._keys is not None
        self._layers += 1
        layer = self._layers
        return jax.vmap(lambda key: jax.random.fold_in(key, layer))(self._keys)


def wide_dtype(dtype: DTypeLike) -> jnp.dtype:
    """Returns the dtype of parameters, statistics and logits: float32, or float64 if the model computes in it."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def pure_model(make: MakeModule, image_shape: tuple[int, int, int], dtype: DTypeLike) -> Model:
    """Splits the module that ``make`` returns into its structure, kept here, and its arrays, passed in and out."""
    module = nnx.eval_shape(lambda: make(nnx.Rngs(params=0)))
    # Any other kind of state, such as an RNG, raises here: a training step carries only these two.
    graph, *states = nnx.split(module, nnx.Param, nnx.BatchStat)
    like_params, like_stats = states
    wide = wide_dtype(dtype)
    draws = any(getattr(m, "rate", 0) > 0 for _, m in nnx.iter_modules(module))  # Dropout's rate

    def init(key: jax.Array) -> tuple[Params, Stats]:
        module = make(nnx.Rngs(params=key))
        state = as_dict(nnx.state(module, nnx.Param)), as_dict(nnx.state(module, nnx.BatchStat))
        return state if wide == jnp.float32 else jax.tree.map(lambda x: x.astype(wide), state)

    def apply(
        params: Params,
        stats: Stats,
        images: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
        axes: tuple[str, ...] = (),
    ) -> tuple[jax.Array, Stats]:
        _check_images(images, image_shape)
        if train and draws and key is None:
            raise ValueError("key is None, and the model has dropout or stochastic depth; pass key=... to train it.")
        merged: Any = nnx.merge(graph, as_state(like_params, params, "params"), as_state(like_stats, stats, "stats"))
        keys = per_image(key, images.shape[0]) if train and draws and key is not None else None
        logits = merged(images.astype(dtype), Mode(train, keys, axes))
        return logits, as_dict(nnx.state(merged, nnx.BatchStat)) if train else stats

    return Model(init, apply)


def as_dict(state: nnx.State) -> dict[str, Any]:
    # All keys are strings, also list positions, as checkpoints restore them.
    flat = {_names(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}
    return traverse_util.unflatten_dict(flat)


def as_state(like: nnx.State, values: dict[str, Any], what: str) -> nnx.State:
    flat = traverse_util.flatten_dict(values)
    expected = nnx.to_flat_state(like)
    unknown = sorted(flat.keys() - {_names(path) for path, _ in expected})
    if unknown:
        raise ValueError(f"{what} has '{'/'.join(unknown[0])}', and the model does not; pass the output of its init.")
    return nnx.from_flat_state([(path, _filled(variable, flat, path, what)) for path, variable in expected])


def _filled(variable: Any, flat: dict[tuple[str, ...], Any], path: tuple, what: str) -> Any:
    names = _names(path)
    if names not in flat:
        raise ValueError(f"{what} lacks '{'/'.join(names)}', which the model has; pass the output of its init.")
    ours, theirs = variable.get_value().shape, jnp.shape(flat[names])
    if ours != theirs:
        raise ValueError(f"{what} '{'/'.join(names)}' has shape {theirs}, and {ours} in the model; build it to match.")
    return variable.replace(jnp.asarray(flat[names]))  # a restored checkpoint may hold NumPy arrays


def _names(path: tuple) -> tuple[str, ...]:
    return tuple(map(str, path))


def _check_images(images: jax.Array, image_shape: tuple[int, int, int]) -> None:
    if images.ndim != 4 or images.shape[1:] != image_shape:
        raise ValueError(
            f"images have shape {images.shape}; this model takes (batch, {', '.join(map(str, image_shape))})."
        )
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise TypeError(
            f"images have dtype {images.dtype}; scale them to floats first, e.g. (images / 255 - mean) / std."
        )
