"""The images a recipe names: limited, held out, with noisy labels and at its size."""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.data import Dataset, Images, hold_out, load_dataset, with_label_noise
from looksam.train.recipe import Recipe

SPLIT_SEED = 0  # of what is held out and of the label noise: the same data for every seed of a run


def load(recipe: Recipe) -> Dataset:
    """The recipe's data: limited, held out, with noisy labels and at its image size."""
    return prepared(recipe, read(recipe))


def read(recipe: Recipe) -> Dataset:
    """The whole data set that a recipe names."""
    data_dir = recipe.data_dir or os.environ.get("LOOKSAM_DATA")
    return load_dataset(recipe.dataset, data_dir=data_dir, download=recipe.download, on_bad_image=recipe.on_bad_image)


def prepared(recipe: Recipe, dataset: Dataset) -> Dataset:
    """What a recipe makes of it."""
    if recipe.classes:
        dataset = _of_classes(dataset, recipe.classes)
    train: Any = dataset.train
    test: Any = dataset.test
    if recipe.validation:
        train, test = hold_out(train, recipe.validation, SPLIT_SEED)
    if recipe.train_limit and recipe.train_limit < len(train):
        _, train = hold_out(train, recipe.train_limit, SPLIT_SEED)
    if recipe.label_noise:
        train = train.with_labels(with_label_noise(train.labels, recipe.label_noise, dataset.num_classes, SPLIT_SEED))
    if recipe.batch_size > len(train) and not recipe.across_epochs:
        raise ValueError(
            f"batch_size={recipe.batch_size} is larger than the {len(train)} training images; pass at most that, "
            "or across_epochs to draw batches over the ends of epochs."
        )
    dataset = dataclasses.replace(dataset, train=train, test=test)
    return _resized(dataset, recipe.image_size)


def _of_classes(dataset: Dataset, count: int) -> Dataset:
    if count > dataset.num_classes:
        raise ValueError(f"classes={count} is more than the {dataset.num_classes} of {dataset.name}; pass fewer.")
    train, test = (part.take(np.flatnonzero(part.labels < count)) for part in (dataset.train, dataset.test))
    return dataclasses.replace(dataset, train=train, test=test, num_classes=count)


def _resized(dataset: Dataset, side: int | None) -> Dataset:
    height, width, channels = dataset.image_shape
    if side is None or (height, width) == (side, side):
        return dataset
    train, test = (_resize(part, side) if isinstance(part, Images) else part for part in (dataset.train, dataset.test))
    return dataclasses.replace(dataset, train=train, test=test, image_shape=(side, side, channels))


def _resize(images: Images, side: int) -> Images:
    @jax.jit
    def resize(batch: jax.Array) -> jax.Array:
        shape = (batch.shape[0], side, side, batch.shape[3])
        smooth = jax.image.resize(batch.astype(jnp.float32), shape, "bilinear", antialias=True)
        return jnp.clip(jnp.round(smooth), 0, 255).astype(jnp.uint8)

    parts = [np.asarray(resize(images.images[i : i + 1000])) for i in range(0, len(images), 1000)]
    return Images(np.concatenate(parts), images.labels)
