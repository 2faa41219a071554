"""One step of training and one of evaluation, as pure functions; the loop jits them, a sweep vmaps them first."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from looksam.data.augment import mixup, normalize, one_hot_smoothed, random_crop_flip
from looksam.data.dataset import Dataset
from looksam.data.randaugment import rand_augment
from looksam.models import Model
from looksam.rules import Rule
from looksam.train.recipe import Recipe
from looksam.train.state import TrainState

Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, jax.Array, jax.Array, bool | None], tuple[TrainState, Metrics]]


def moments(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(dataset.mean, np.float32), np.asarray(dataset.std, np.float32)


def make_augment(recipe: Recipe, dataset: Dataset) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """``augment(key, uint8 images, labels) -> (inputs, target distributions)``, as the recipe says."""

    def augment(key: jax.Array, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        crop_key, ops_key, mix_key = jax.random.split(key, 3)
        if recipe.crop_padding is not None:
            images = random_crop_flip(crop_key, images, padding=recipe.crop_padding)
        if recipe.randaugment:
            images = rand_augment(
                ops_key, images, operations=recipe.randaugment, magnitude=recipe.randaugment_magnitude
            )
        inputs = normalize(images, *moments(dataset))
        targets = one_hot_smoothed(labels, dataset.num_classes, recipe.label_smoothing)
        return mixup(mix_key, inputs, targets, recipe.mixup) if recipe.mixup else (inputs, targets)

    return augment


def make_train_step(
    recipe: Recipe, dataset: Dataset, model: Model, rule: Rule | None, tx: optax.GradientTransformation
) -> TrainStep:
    """``train_step(state, images, labels, refresh)``; ``refresh`` is the rule's, static."""
    augment = make_augment(recipe, dataset)

    def loss(params: Any, stats: Any, inputs: jax.Array, targets: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        logits, stats = model.apply(params, stats, inputs, train=True, key=key)
        return optax.softmax_cross_entropy(logits, targets).mean(), (stats, logits)

    value_and_grad = jax.value_and_grad(loss, has_aux=True)

    def train_step(
        state: TrainState, images: jax.Array, labels: jax.Array, refresh: bool | None
    ) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        augment_key, model_key = jax.random.split(key)
        inputs, targets = augment(augment_key, images, labels)
        args = (state.params, state.stats, inputs, targets, model_key)
        if rule is None:
            (value, (stats, logits)), grads = value_and_grad(*args)
            rule_state, extra = (), {"grad_norm": optax.tree.norm(grads)}
        else:
            # the second pass gets the same inputs and key; statistics are of the clean pass
            (value, (stats, logits)), grads, rule_state, info = rule.gradient(
                value_and_grad, state.params, state.rule_state, *args[1:], refresh=refresh
            )
            extra = {name: part.astype(jnp.float32) for name, part in info._asdict().items()}
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        accuracy = jnp.mean((jnp.argmax(logits, -1) == labels).astype(jnp.float32))
        new_state = TrainState(state.step + 1, params, stats, opt_state, rule_state, state.key)
        return new_state, {"loss": value, "accuracy": accuracy, **extra}

    return train_step


def make_eval_step(dataset: Dataset, model: Model) -> Callable[..., Metrics]:
    """``eval_step(params, stats, images, labels, weight)``: weighted sums of loss, hits and images."""

    def eval_step(params: Any, stats: Any, images: jax.Array, labels: jax.Array, weight: jax.Array) -> Metrics:
        logits, _ = model.apply(params, stats, normalize(images, *moments(dataset)), train=False)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        hits = (jnp.argmax(logits, -1) == labels).astype(jnp.float32)
        return {"loss": jnp.sum(weight * losses), "hits": jnp.sum(weight * hits), "images": jnp.sum(weight)}

    return eval_step
