"""One training step and one evaluation step, as pure functions of the state and a batch.

Here a batch from ``batches.py`` becomes an update: images are augmented, the loss is defined, ``parallel.py`` takes its
gradient over all devices, the rule chooses the gradient that the optimizer sees, and the optimizer moves the
parameters. ``training.py`` compiles the two functions; a sweep maps them over many runs first.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from looksam.rules import LookSAMState, Rule, StepInfo
from looksam.rules.pytree import accumulator
from looksam.trainer import parameter_paths
from looksam.trainer.data.reading.dataset import Dataset
from looksam.trainer.data.transforms.augment import mixup, normalize, one_hot_smoothed, random_crop_flip
from looksam.trainer.data.transforms.randaugment import rand_augment
from looksam.trainer.keys import per_image
from looksam.trainer.models import Model
from looksam.trainer.parallel import BatchSplit, Gradient, Layout, Loss, SingleDeviceLayout
from looksam.trainer.recipe import Recipe

Metrics = dict[str, jax.Array]
# What a step does, known when it is traced: whether the rule takes its second gradient; None where it does not act, or
# there is none; "traced" where the rule decides on the device.
Refresh = bool | Literal["traced"] | None


class TrainState(NamedTuple):
    """Everything that changes from step to step: a pytree of arrays, and the content of a checkpoint."""

    step: jax.Array  # number of steps taken
    params: Any
    stats: Any  # the model's running statistics (BatchNorm)
    opt_state: Any
    rule_state: Any  # the rule's step count and its g_v or momentum; () for the base optimizer
    key: jax.Array  # key data; all randomness of step i comes from fold_in(key, i)


def init_state(
    key: jax.Array, model: Model, rule: Rule | None, tx: optax.GradientTransformation, freeze: str | None = None
) -> TrainState:
    """The state at step 0. Pure, so that it can be jitted, vmapped or only evaluated for its shapes."""
    init_key, run_key = jax.random.split(key)
    params, stats = model.init(init_key)
    trained, _ = parameter_paths.split(params, freeze)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        stats=stats,
        opt_state=tx.init(trained),
        rule_state=rule.init(trained) if rule else (),
        key=jax.random.key_data(run_key),
    )


# --- augmentation -------------------------------------------------------------------------------------------------


def make_augment(recipe: Recipe, split: BatchSplit) -> Callable[[jax.Array, Any, jax.Array], jax.Array]:
    """Returns ``augment(key, first_row, images)``: random crops, flips and RandAugment on uint8 images.

    It runs once per step, so that both gradients see the same images, and one micro-batch at a time. ``first_row`` is
    the position of these images in the whole batch.
    """

    def augment(keys: jax.Array, images: jax.Array) -> jax.Array:
        crop_keys, operation_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        if recipe.crop_padding is not None:
            images = random_crop_flip(crop_keys, images, padding=recipe.crop_padding)
        if recipe.randaugment:
            images = rand_augment(
                operation_keys, images, operations=recipe.randaugment, magnitude=recipe.randaugment_magnitude
            )
        return images

    def by_microbatch(key: jax.Array, first_row: Any, images: jax.Array) -> jax.Array:
        if recipe.crop_padding is None and not recipe.randaugment:
            return images
        keys = per_image(key, images.shape[0], first_row)
        if split.microbatches == 1:
            return augment(keys, images)
        parts = jax.tree.map(lambda x: x.reshape(split.microbatches, -1, *x.shape[1:]), (keys, images))
        return lax.map(lambda part: augment(*part), parts).reshape(images.shape)

    return by_microbatch


# --- loss ---------------------------------------------------------------------------------------------------------


class StepContext(NamedTuple):
    """What all images of a step share."""

    stats: Any
    model_key: jax.Array
    mix_key: jax.Array
    frozen: Any = None  # parameters that are not trained; None: all are


def make_loss(recipe: Recipe, dataset: Dataset, model: Model) -> Loss:
    """Returns the mean loss of some images, together with the new running statistics and the accuracy."""

    def loss(
        params: Any, axes: tuple[str, ...], context: StepContext, images: jax.Array, labels: jax.Array, keys: jax.Array
    ) -> tuple[jax.Array, Any]:
        inputs = _inputs(images, dataset, params)
        targets = one_hot_smoothed(labels, dataset.num_classes, recipe.label_smoothing)
        if recipe.mixup:
            inputs, targets = mixup(context.mix_key, inputs, targets, recipe.mixup)
        whole = parameter_paths.joined(params, context.frozen)
        logits, stats = model.apply(whole, context.stats, inputs, train=True, key=keys, axes=axes)
        accuracy = jnp.mean((jnp.argmax(logits, -1) == labels).astype(jnp.float32))
        return optax.softmax_cross_entropy(logits, targets).mean(), (stats, accuracy)

    return loss


def _inputs(images: jax.Array, dataset: Dataset, params: Any) -> jax.Array:
    """The normalised images; in float64 if the parameters are."""
    return normalize(images, *moments(dataset), dtype=accumulator(params))


def moments(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The mean and standard deviation of each channel, with which images are normalised."""
    return np.asarray(dataset.mean, np.float32), np.asarray(dataset.std, np.float32)


# --- training step ------------------------------------------------------------------------------------------------


class TrainStep(Protocol):
    """Takes one training step; see ``make_train_step``."""

    def __call__(
        self,
        state: TrainState,
        images: jax.Array,
        labels: jax.Array,
        refresh: Refresh,
        log: bool | jax.Array = True,
    ) -> tuple[TrainState, Metrics]: ...


def make_train_step(
    recipe: Recipe,
    dataset: Dataset,
    model: Model,
    rule: Rule | None,
    tx: optax.GradientTransformation,
    layout: Layout | None = None,
) -> TrainStep:
    """Returns ``train_step(state, images, labels, refresh, log=True) -> (state, metrics)``.

    ``refresh`` is static, see ``Refresh``; ``refresh_of`` gives it.

    The metrics are ``loss`` and ``accuracy`` of the clean pass (of the only one for a rule that takes one gradient, at
    w + ε), and the fields of the rule's ``StepInfo`` (``g_v_norm`` only for rules that keep g_v) or, for the base
    optimizer, ``grad_norm``. A refresh step computes all of them in any case. On other steps the latter need one more
    pass over the gradient and g_v, which is taken only if ``log`` is true; otherwise they are NaN. ``log`` may be
    traced, so that one program serves all of these steps.
    """
    layout = layout or SingleDeviceLayout()
    split = BatchSplit.of(recipe, layout.devices)
    augment = layout.map_rows(make_augment(recipe, split))
    gradient = Gradient(make_loss(recipe, dataset, model), layout, split)

    def train_step(
        state: TrainState,
        images: jax.Array,
        labels: jax.Array,
        refresh: Refresh,
        log: bool | jax.Array = True,
    ) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        augment_key, model_key, mix_key = jax.random.split(key, 3)
        trained, frozen = parameter_paths.split(state.params, recipe.freeze)
        context = StepContext(state.stats, model_key, mix_key, frozen)
        batch = context, augment(augment_key, images), labels
        trained_state = state._replace(params=trained)
        value, grads, rule_state, more = _choose_gradient(gradient, rule, trained_state, batch, refresh, log)
        loss, (stats, accuracy) = value
        updates, opt_state = tx.update(grads, state.opt_state, trained)
        params = parameter_paths.joined(optax.apply_updates(trained, updates), frozen)
        new_state = TrainState(state.step + 1, params, stats, opt_state, rule_state, state.key)
        return new_state, {"loss": loss, "accuracy": accuracy, **more}

    return train_step


def refresh_of(rule: Rule | None, step: int) -> bool | None:
    """What a step does, by its number: which program it runs."""
    return rule.refreshes(step) if rule and rule.is_active(step) else None


def _choose_gradient(
    gradient: Gradient,
    rule: Rule | None,
    state: TrainState,
    batch: tuple[Any, ...],
    refresh: Refresh,
    log: bool | jax.Array,
) -> tuple[Any, Any, Any, Metrics]:
    """The value of the first pass, the gradient for the optimizer, the new state of the rule, and further metrics."""
    if rule and refresh in (True, "traced"):
        value, grads, rule_state, info = gradient.with_rule(
            rule, state.params, state.rule_state, *batch, refresh=None if refresh == "traced" else True
        )
        return value, grads, rule_state, _metrics(info, rule_state)
    value, g = gradient(state.params, *batch)
    if rule is None:
        return value, g, (), _if_logged(log, lambda: {"grad_norm": optax.tree.norm(g)})

    def transform() -> tuple[Any, Any, StepInfo]:
        if refresh is None:
            return rule.plain(g, state.params, state.rule_state)
        return rule.transform(g, _no_second_gradient, state.params, state.rule_state, refresh=False)

    grads, rule_state, _ = transform()
    # Traced a second time for the metrics: whatever else this copy computes is removed as dead code.
    return value, grads, rule_state, _if_logged(log, lambda: _metrics(transform()[2], rule_state))


def _no_second_gradient(params: Any) -> Any:
    raise AssertionError("a step that reuses g_v takes no second gradient")


def _metrics(info: StepInfo, rule_state: Any) -> Metrics:
    names = [name for name in info._fields if name != "g_v_norm" or isinstance(rule_state, LookSAMState)]
    return {name: getattr(info, name).astype(jnp.float32) for name in names}


def _if_logged(log: bool | jax.Array, compute: Callable[[], Metrics]) -> Metrics:
    """``compute()`` on the steps that are logged; NaN on the others, which then do not pay for it."""
    if log is True:
        return compute()
    skipped = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), jax.eval_shape(compute))
    return skipped if log is False else lax.cond(log, compute, lambda: skipped)


# --- evaluation step ----------------------------------------------------------------------------------------------


def make_eval_loss(dataset: Dataset, model: Model) -> Callable[..., jax.Array]:
    """Returns ``eval_loss(params, stats, images, labels)``: the mean cross-entropy in evaluation mode."""

    def eval_loss(params: Any, stats: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits, _ = model.apply(params, stats, _inputs(images, dataset, params), train=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return eval_loss


def make_eval_step(dataset: Dataset, model: Model, layout: Layout | None = None) -> Callable[..., Metrics]:
    """Returns ``eval_step(params, stats, images, labels, weight)``: weighted sums of losses, hits and images."""
    layout = layout or SingleDeviceLayout()

    def on_device(params: Any, stats: Any, first_row: Any, *batch: jax.Array) -> tuple[Metrics, tuple[()]]:
        images, labels, weight = batch
        logits, _ = model.apply(params, stats, _inputs(images, dataset, params), train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        hits = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
        sums = {"loss": jnp.sum(weight * losses), "hits": jnp.sum(weight * hits), "images": jnp.sum(weight)}
        return {name: layout.devices * part for name, part in sums.items()}, ()  # the mean over devices is their sum

    over_devices = layout.mean_over_devices(on_device, gradients=0)
    return lambda params, stats, *batch: over_devices(params, stats, *batch)[0]
