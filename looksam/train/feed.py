"""Where a run's batches come from: a set that lives on the device, or a stream of decoded images.

A feed gives the arguments of step i from (seed, i) alone, so a checkpoint needs no more than the step.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from looksam.data import (
    Dataset,
    Encoded,
    Images,
    epoch_batches,
    eval_batches,
    hold_out,
    load_dataset,
    train_batches,
    with_label_noise,
)
from looksam.train.recipe import Recipe

SPLIT_SEED = 0  # of what is held out and of the label noise: the same data for every seed of a run
EVAL_BATCH = 500


def load(recipe: Recipe) -> Dataset:
    """The recipe's data: limited, held out, with noisy labels and at its image size."""
    data_dir = recipe.data_dir or os.environ.get("LOOKSAM_DATA")
    dataset = load_dataset(
        recipe.dataset, data_dir=data_dir, download=recipe.download, on_bad_image=recipe.on_bad_image
    )
    train: Any = dataset.train
    test: Any = dataset.test
    if recipe.validation:
        train, test = hold_out(train, recipe.validation, SPLIT_SEED)
    if recipe.train_limit and recipe.train_limit < len(train):
        _, train = hold_out(train, recipe.train_limit, SPLIT_SEED)
    if recipe.label_noise:
        train = train.with_labels(with_label_noise(train.labels, recipe.label_noise, dataset.num_classes, SPLIT_SEED))
    if recipe.batch_size > len(train):
        raise ValueError(
            f"batch_size={recipe.batch_size} is larger than the {len(train)} training images; pass at most that."
        )
    dataset = dataclasses.replace(dataset, train=train, test=test)
    return _resized(dataset, recipe.image_size)


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


class Feed(Protocol):
    steps_per_epoch: int

    def arguments(self, step: int) -> tuple[Any, ...]: ...
    def select(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]: ...
    def close(self) -> None: ...


class Resident:
    """A set on the device; a step gets the indices of its batch."""

    def __init__(self, source: Images, recipe: Recipe) -> None:
        self.images, self.labels = jax.device_put((source.images, source.labels))
        self.size, self.batch_size, self.seed = len(source), recipe.batch_size, recipe.seed
        self.steps_per_epoch = self.size // self.batch_size
        self._epoch, self._order = -1, np.zeros((0, 0), np.int32)

    def arguments(self, step: int) -> tuple[Any, ...]:
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_batches(self.size, self.batch_size, self.seed, epoch)
        return self.images, self.labels, self._order[position]

    def select(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, labels, batch = arguments
        return images[batch], labels[batch]

    def close(self) -> None:
        pass


class Stream:
    """A set that is decoded as it is read; a step gets the images themselves."""

    def __init__(self, source: Encoded, recipe: Recipe, side: int) -> None:
        self.steps_per_epoch = len(source) // recipe.batch_size
        self._source, self._recipe, self._side = source, recipe, side
        self._next, self._batches = -1, iter(())  # type: tuple[int, Iterator[dict[str, Any]]]

    def arguments(self, step: int) -> tuple[Any, ...]:
        if step != self._next:
            self.close()
            self._batches = train_batches(
                self._source,
                batch_size=self._recipe.batch_size,
                seed=self._recipe.seed,
                image_size=self._side,
                start_step=step,
                workers=self._recipe.workers,
            )
        self._next = step + 1
        batch = next(self._batches)
        return batch["image"], batch["label"]

    def select(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, labels = arguments
        return images, labels

    def close(self) -> None:
        if hasattr(self._batches, "close"):
            self._batches.close()


def make_feed(dataset: Dataset, recipe: Recipe) -> Feed:
    if isinstance(dataset.train, Images):
        return Resident(dataset.train, recipe)
    return Stream(dataset.train, recipe, dataset.image_shape[0])


class EvalBatch(NamedTuple):
    images: Any
    labels: Any
    weight: Any  # 0 for what only fills the last batch


def make_eval_batches(dataset: Dataset, recipe: Recipe) -> Iterator[EvalBatch]:
    """Every test image once; the last batch is filled up with weight 0."""
    test = dataset.test
    if not isinstance(test, Images):
        batches = eval_batches(
            test, batch_size=min(EVAL_BATCH, 100), image_size=dataset.image_shape[0], workers=recipe.workers
        )
        for batch in batches:
            yield EvalBatch(batch["image"], batch["label"], batch["weight"])
        return
    size = min(EVAL_BATCH, len(test))
    for start in range(0, len(test), size):
        rows = np.arange(start, start + size)
        weight = (rows < len(test)).astype(np.float32)
        rows = np.minimum(rows, len(test) - 1)
        yield EvalBatch(test.images[rows], test.labels[rows], weight)
