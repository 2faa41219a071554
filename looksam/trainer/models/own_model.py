"""Models of the user's own as the trainer's pure functions, checked on shapes before anything is computed.

A builder ``build(image_shape, num_classes, dtype, *, options)`` gives a model in one of three forms:

- Flax NNX: it also takes ``rngs`` and returns an ``nnx.Module`` that is called with the images. ``BatchNorm`` and
  ``Dropout`` are those of Flax: the trainer switches the module between training and evaluation, and draws Dropout's
  masks from the step's key, the same for both gradients of a step.
- a pair of functions, ``init(key) -> params`` and ``apply(params, images, *, train, key) -> logits``, for any library
  with parameters as a pytree (Linen, Haiku, Equinox).
- a ``Model`` with running statistics, or a function of ``rngs`` whose module takes a ``Mode``, as built-in models do.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from looksam.rules.pytree import path_string
from looksam.trainer.models.functional import Model, Params, Stats, as_dict, as_state, pure_model, wide_dtype
from looksam.trainer.own_code import OwnCodeError, reported

Shape = tuple[int, int, int]
EXAMPLE = "def build(image_shape, num_classes, dtype, *, rngs)"
PROBED_IMAGES = 2  # on which the shapes are checked


def own_model(
    name: str, builder: Callable[..., Any], shape: Shape, classes: int, dtype: DTypeLike, options: Mapping[str, Any]
) -> Model:
    """Returns the model that a user's builder gives; raises ``OwnCodeError`` where it does not fit."""
    parameters = inspect.signature(builder).parameters
    takes_rngs = "rngs" in parameters
    try:
        inspect.signature(builder).bind(shape, classes, dtype, **options, **({"rngs": None} if takes_rngs else {}))
    except TypeError as error:
        raise OwnCodeError(f"model {name} cannot be called ({error}); define it as {EXAMPLE}.") from None
    with reported(f"model {name}"):
        if takes_rngs:
            model = _from_module(name, lambda rngs: builder(shape, classes, dtype, rngs=rngs, **options), dtype)
        else:
            model = _from_result(name, builder(shape, classes, dtype, **options), shape, dtype)
        _check(name, model, shape, classes, dtype)
    return model


def _from_result(name: str, result: Any, shape: Shape, dtype: DTypeLike) -> Model:
    if isinstance(result, Model):
        return result
    if isinstance(result, tuple) and len(result) == 2 and all(map(callable, result)):
        return _from_pair(*result, dtype)
    if isinstance(result, nnx.Module):
        raise OwnCodeError(
            f"model {name} returns a module, but takes no rngs, so its weights cannot follow the run's seed; "
            f"define it as {EXAMPLE}."
        )
    if callable(result):
        return pure_model(result, shape, dtype)
    raise OwnCodeError(
        f"model {name} returns a {type(result).__name__}; return an nnx.Module, or two functions (init, apply)."
    )


# --- Flax NNX -----------------------------------------------------------------------------------------------------


def _from_module(name: str, build: Callable[[nnx.Rngs], Any], dtype: DTypeLike) -> Model:
    def make(rngs: nnx.Rngs) -> nnx.Module:
        module = build(rngs)
        if not isinstance(module, nnx.Module):
            raise OwnCodeError(f"model {name} takes rngs, but returns a {type(module).__name__}; return an nnx.Module.")
        return module

    module = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    _check_variables(name, module)
    graph, *states = nnx.split(module, nnx.Param, nnx.BatchStat, nnx.RngState)
    like_params, like_stats, like_rngs = states

    def init(key: jax.Array) -> tuple[Params, Stats]:
        module = make(nnx.Rngs(key))
        return as_dict(nnx.state(module, nnx.Param)), as_dict(nnx.state(module, nnx.BatchStat))

    def apply(
        params: Params,
        stats: Stats,
        images: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
        axes: tuple[str, ...] = (),
    ) -> tuple[jax.Array, Stats]:
        filled = as_state(like_params, params, "params"), as_state(like_stats, stats, "stats")
        merged: Any = nnx.merge(graph, *filled, _streams(like_rngs, one_key(key)))
        (merged.train if train else merged.eval)()
        logits = merged(images.astype(dtype)).astype(wide_dtype(dtype))
        return logits, as_dict(nnx.state(merged, nnx.BatchStat)) if train else stats

    return Model(init, apply)


def _check_variables(name: str, module: nnx.Module) -> None:
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        if not isinstance(variable, nnx.Param | nnx.BatchStat | nnx.RngState):
            raise OwnCodeError(
                f"model {name} has {'/'.join(map(str, path))} of type nnx.{type(variable).__name__}; a training step "
                "carries nnx.Param, nnx.BatchStat and the streams of nnx.Rngs, so make it one of these."
            )


def one_key(key: jax.Array | None) -> jax.Array:
    """Returns a single key of those that the trainer gives to the images of a batch, one each."""
    if key is None:
        return jax.random.key(0)  # of evaluation, which draws nothing
    return key if key.ndim == 0 else key[0]


def _streams(like: nnx.State, key: jax.Array) -> nnx.State:
    """Returns the random streams of a module, each restarted from a key of its own."""
    streams = []
    for number, (path, variable) in enumerate(nnx.to_flat_state(like)):
        is_key = isinstance(variable, nnx.RngKey)
        value = jax.random.fold_in(key, number) if is_key else jnp.zeros((), variable.get_value().dtype)
        streams.append((path, variable.replace(value)))
    return nnx.from_flat_state(streams)


# --- two functions ------------------------------------------------------------------------------------------------


def _from_pair(init_params: Callable[..., Any], apply_params: Callable[..., Any], dtype: DTypeLike) -> Model:
    """Returns the model of two functions, whose parameters become a dict from path to array."""
    shapes = jax.eval_shape(init_params, jax.random.key(0))
    structure, names = jax.tree.structure(shapes), list(_by_path(shapes))

    def init(key: jax.Array) -> tuple[Params, Stats]:
        return _by_path(init_params(key)), {}

    def apply(
        params: Params,
        stats: Stats,
        images: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
        axes: tuple[str, ...] = (),
    ) -> tuple[jax.Array, Stats]:
        tree = jax.tree.unflatten(structure, [params[name] for name in names])
        logits = apply_params(tree, images.astype(dtype), train=train, key=one_key(key))
        return logits.astype(wide_dtype(dtype)), stats

    return Model(init, apply)


def _by_path(tree: Any) -> Params:
    return {path_string(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


# --- checks -------------------------------------------------------------------------------------------------------


def _check(name: str, model: Model, shape: Shape, classes: int, dtype: DTypeLike) -> None:
    """Runs ``init`` and ``apply`` on shapes alone, in training and in evaluation."""
    key = jax.random.key(0)
    params, stats = jax.eval_shape(model.init, key)
    if not jax.tree.leaves(params):
        raise OwnCodeError(f"model {name} has no parameters; make its weights nnx.Param, or return them from init.")
    for path, leaf in _by_path(params).items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise OwnCodeError(
                f"model {name}: the parameter {path} is {leaf.dtype}, which has no gradient; "
                "keep what is not trained out of the parameters."
            )
    images = jax.ShapeDtypeStruct((PROBED_IMAGES, *shape), wide_dtype(dtype))
    for train in (True, False):
        apply = functools.partial(model.apply, train=train, key=key)
        logits, after = jax.eval_shape(apply, params, stats, images)
        if logits.shape != (PROBED_IMAGES, classes):
            raise OwnCodeError(
                f"model {name} maps {PROBED_IMAGES} images to logits of shape {logits.shape}; return "
                f"(batch, {classes}), one logit for each class."
            )
        if after != stats:
            raise OwnCodeError(f"model {name} changes the shape or dtype of its statistics; return them as init does.")
