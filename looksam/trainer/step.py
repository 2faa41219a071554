"""What a run carries from step to step.

One step of training and one of evaluation, as pure functions; the loop jits them, a sweep vmaps them first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from looksam.rules import Rule
from looksam.trainer.data.reading.dataset import Dataset
from looksam.trainer.data.transforms.augment import mixup, normalize, one_hot_smoothed, random_crop_flip
from looksam.trainer.data.transforms.randaugment import rand_augment
from looksam.trainer.keys import per_image
from looksam.trainer.models import Model
from looksam.trainer.parallel import Gradient, Layout, Loss, OneDevice, Parts
from looksam.trainer.recipe import Recipe


class TrainState(NamedTuple):
    """A pytree of arrays: donated to the step, and what a checkpoint holds."""

    step: jax.Array  # steps taken
    params: Any
    stats: Any  # of the model: BatchNorm's running mean and variance
    opt_state: Any
    rule_state: Any  # g_v and the counter; () for the base optimizer
    key: jax.Array  # key data; what is random in step i comes from fold_in(key, i)


def init_state(key: jax.Array, model: Model, rule: Rule | None, tx: optax.GradientTransformation) -> TrainState:
    """The state at step 0, from one key. Pure: jit it, vmap it, or look at its shapes alone."""
    init_key, run_key = jax.random.split(key)
    params, stats = model.init(init_key)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        stats=stats,
        opt_state=tx.init(params),
        rule_state=rule.init(params) if rule else (),
        key=jax.random.key_data(run_key),
    )


Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, jax.Array, jax.Array, bool | None], tuple[TrainState, Metrics]]


class Shared(NamedTuple):
    """What all images of a step have in common."""

    stats: Any
    model_key: jax.Array
    mix_key: jax.Array


def moments(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(dataset.mean, np.float32), np.asarray(dataset.std, np.float32)


def make_augment(recipe: Recipe, parts: Parts) -> Callable[[jax.Array, Any, jax.Array], jax.Array]:
    """``augment(key, first, images)``: crops, flips and RandAugment on uint8, a micro-batch at a time.

    It is done once a step, and both gradients see the result. ``first`` is the number of the first image.
    """

    def augment(keys: jax.Array, images: jax.Array) -> jax.Array:
        crop_keys, ops_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        if recipe.crop_padding is not None:
            images = random_crop_flip(crop_keys, images, padding=recipe.crop_padding)
        if recipe.randaugment:
            images = rand_augment(
                ops_keys, images, operations=recipe.randaugment, magnitude=recipe.randaugment_magnitude
            )
        return images

    def in_parts(key: jax.Array, first: Any, images: jax.Array) -> jax.Array:
        if recipe.crop_padding is None and not recipe.randaugment:
            return images
        keys = per_image(key, images.shape[0], first)
        if parts.microbatches == 1:
            return augment(keys, images)
        cut = jax.tree.map(lambda x: x.reshape(parts.microbatches, -1, *x.shape[1:]), (keys, images))
        return jax.lax.map(lambda part: augment(*part), cut).reshape(images.shape)

    return in_parts


def make_loss(recipe: Recipe, dataset: Dataset, model: Model) -> Loss:
    """The mean loss of some images, with what else is known of them: new statistics and the accuracy."""

    def loss(
        params: Any, axes: tuple[str, ...], shared: Shared, images: jax.Array, labels: jax.Array, keys: jax.Array
    ) -> tuple[jax.Array, Any]:
        inputs = normalize(images, *moments(dataset))
        targets = one_hot_smoothed(labels, dataset.num_classes, recipe.label_smoothing)
        if recipe.mixup:
            inputs, targets = mixup(shared.mix_key, inputs, targets, recipe.mixup)
        logits, stats = model.apply(params, shared.stats, inputs, train=True, key=keys, axes=axes)
        accuracy = jnp.mean((jnp.argmax(logits, -1) == labels).astype(jnp.float32))
        return optax.softmax_cross_entropy(logits, targets).mean(), (stats, accuracy)

    return loss


def make_train_step(
    recipe: Recipe,
    dataset: Dataset,
    model: Model,
    rule: Rule | None,
    tx: optax.GradientTransformation,
    layout: Layout | None = None,
) -> TrainStep:
    """``train_step(state, images, labels, refresh)``; ``refresh`` is the rule's, static."""
    layout = layout or OneDevice()
    parts = Parts.of(recipe, layout.devices)
    augment = layout.each_row(make_augment(recipe, parts))
    gradient = Gradient(make_loss(recipe, dataset, model), layout, parts)

    def train_step(
        state: TrainState, images: jax.Array, labels: jax.Array, refresh: bool | None
    ) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        augment_key, *keys = jax.random.split(key, 3)
        batch = Shared(state.stats, *keys), augment(augment_key, images), labels
        if rule is None:
            value, grads = gradient(state.params, *batch)
            rule_state, extra = (), {"grad_norm": optax.tree.norm(grads)}
        else:
            value, grads, rule_state, info = gradient.by(rule, state.params, state.rule_state, *batch, refresh=refresh)
            extra = {name: part.astype(jnp.float32) for name, part in info._asdict().items()}
        loss, (stats, accuracy) = value
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new_state = TrainState(state.step + 1, params, stats, opt_state, rule_state, state.key)
        return new_state, {"loss": loss, "accuracy": accuracy, **extra}

    return train_step


def make_eval_step(dataset: Dataset, model: Model, layout: Layout | None = None) -> Callable[..., Metrics]:
    """``eval_step(params, stats, images, labels, weight)``: weighted sums of loss, hits and images."""
    layout = layout or OneDevice()

    def worker(params: Any, stats: Any, first: Any, *batch: jax.Array) -> tuple[Metrics, tuple[()]]:
        images, labels, weight = batch
        logits, _ = model.apply(params, stats, normalize(images, *moments(dataset)), train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        hits = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
        sums = {"loss": jnp.sum(weight * losses), "hits": jnp.sum(weight * hits), "images": jnp.sum(weight)}
        return {name: layout.devices * part for name, part in sums.items()}, ()  # means over the devices come back

    work = layout.work(worker, trees=0)
    return lambda params, stats, *batch: work(params, stats, *batch)[0]
