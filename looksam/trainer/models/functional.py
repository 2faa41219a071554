"""How one pass through a model runs; made by ``Model.apply`` and handed from layer to layer.

A Flax NNX module as two pure functions of nested plain dicts, made once, when the model is built.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx, traverse_util
from jax.typing import DTypeLike

from looksam.trainer.keys import per_image


class Mode:
    """Training or not, what is drawn from, and over which devices the batch is spread.

    Args:
      train: BatchNorm uses the batch, and dropout drops.
      keys: one for each image, or None where nothing is drawn.
      axes: mesh axes of the surrounding ``shard_map`` over which the batch is spread. BatchNorm's statistics are
        taken over them too.
    """

    def __init__(self, train: bool, keys: jax.Array | None = None, axes: tuple[str, ...] = ()) -> None:
        self.train, self.axes = train, axes
        self._keys, self._layers = keys, 0

    def next_keys(self) -> jax.Array:
        """A key for each image, new for each layer that asks."""
        assert self._keys is not None
        self._layers += 1
        layer = self._layers
        return jax.vmap(lambda key: jax.random.fold_in(key, layer))(self._keys)


Params = dict[str, Any]  # nested dicts of float32 arrays; paths read like "blocks/0/attention/query/kernel"
Stats = dict[str, Any]  # BatchNorm's running statistics, in the same shape; {} for a model without
MakeModule = Callable[[nnx.Rngs], nnx.Module]  # the module is called as module(images, mode)


class Model(NamedTuple):
    """What the trainer needs of a model.

    ``init(key)`` gives (params, stats). It may be jitted, and under ``jax.eval_shape`` allocates nothing.

    ``apply(params, stats, images, *, train, key=None, axes=())`` gives (logits, new stats). With ``train=True``
    BatchNorm uses the batch and the new stats have moved towards it; otherwise ``stats`` are used and returned as they
    are. All randomness comes from ``key``, one or one for each image, so two passes with one key see the same masks, as
    SAM needs. ``axes`` names the axes of a surrounding ``shard_map`` over which the batch is spread.
    """

    init: Callable[[jax.Array], tuple[Params, Stats]]
    apply: Callable[..., tuple[jax.Array, Stats]]


def wide(dtype: DTypeLike) -> jnp.dtype:
    """The dtype of statistics and logits: float32, and float64 where the model computes in it."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def pure_model(make: MakeModule, image_shape: tuple[int, int, int], dtype: DTypeLike) -> Model:
    """Split the module that ``make`` gives into its structure, kept here, and its arrays, passed in and out."""
    module = nnx.eval_shape(lambda: make(nnx.Rngs(params=0)))
    # A third kind of state (an RNG, say) would raise here: the two are all that a step carries.
    graph, *states = nnx.split(module, nnx.Param, nnx.BatchStat)
    like_params, like_stats = states
    draws = any(getattr(m, "rate", 0) > 0 for _, m in nnx.iter_modules(module))  # of Dropout

    def init(key: jax.Array) -> tuple[Params, Stats]:
        made = make(nnx.Rngs(params=key))
        return _as_dict(nnx.state(made, nnx.Param)), _as_dict(nnx.state(made, nnx.BatchStat))

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
        merged: Any = nnx.merge(graph, _as_state(like_params, params, "params"), _as_state(like_stats, stats, "stats"))
        keys = per_image(key, images.shape[0]) if train and draws and key is not None else None
        logits = merged(images.astype(dtype), Mode(train, keys, axes))
        return logits, _as_dict(nnx.state(merged, nnx.BatchStat)) if train else stats

    return Model(init, apply)


def _as_dict(state: nnx.State) -> dict[str, Any]:
    # Keys are strings, list positions too: that is how checkpoints give them back.
    flat = {_names(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}
    return traverse_util.unflatten_dict(flat)


def _as_state(like: nnx.State, values: dict[str, Any], what: str) -> nnx.State:
    flat = traverse_util.flatten_dict(values)
    expected = nnx.to_flat_state(like)
    unknown = sorted(flat.keys() - {_names(path) for path, _ in expected})
    if unknown:
        raise ValueError(f"{what} has '{'/'.join(unknown[0])}', and the model does not; pass what its init gave.")
    return nnx.from_flat_state([(path, _filled(variable, flat, path, what)) for path, variable in expected])


def _filled(variable: Any, flat: dict[tuple[str, ...], Any], path: tuple, what: str) -> Any:
    names = _names(path)
    if names not in flat:
        raise ValueError(f"{what} lacks '{'/'.join(names)}', which the model has; pass what its init gave.")
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
