"""The images a recipe names: limited, held out, with noisy labels and at its size.

Where a run's batches come from: a set in the memory of the device or the host, or a stream of decoded images.

A feed gives the arguments of step i from (seed, i) alone, so a checkpoint needs no more than the step.

Every image of the test set once, in batches that divide over the devices.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from looksam.trainer.data import (
    Dataset,
    Encoded,
    Images,
    batch_across_epochs,
    epoch_batches,
    eval_batches,
    hold_out,
    load_dataset,
    rows_per_epoch,
    train_batches,
    with_label_noise,
)
from looksam.trainer.parallel import Layout, OneDevice, chosen, local_rows
from looksam.trainer.recipe import Recipe

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


class Pace(NamedTuple):
    """How steps and epochs go together."""

    batch_size: int
    images: int  # visited in an epoch

    @classmethod
    def of(cls, count: int, recipe: Recipe) -> "Pace":
        return cls(recipe.batch_size, rows_per_epoch(count, recipe.batch_size, recipe.across_epochs))

    def steps(self, epochs: int) -> int:
        return max(1, epochs * self.images // self.batch_size)

    def epochs(self, step: int) -> float:
        return step * self.batch_size / self.images

    def whole_epochs(self, step: int) -> int:
        return step * self.batch_size // self.images


class Feed(Protocol):
    pace: Pace

    def arguments(self, step: int) -> tuple[Any, ...]: ...
    def select(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]: ...
    def close(self) -> None: ...


class Order:
    """The rows of each step's batch."""

    def __init__(self, count: int, recipe: Recipe) -> None:
        self._count, self._recipe = count, recipe
        self._epoch, self._rows = -1, np.zeros((0, 0), np.int32)

    def __getitem__(self, step: int) -> np.ndarray:
        size, seed = self._recipe.batch_size, self._recipe.seed
        if self._recipe.across_epochs:
            return batch_across_epochs(self._count, size, seed, step)
        epoch, position = divmod(step, self._count // size)
        if epoch != self._epoch:
            self._epoch, self._rows = epoch, epoch_batches(self._count, size, seed, epoch)
        return self._rows[position]


class Resident:
    """A set on the one device; a step gets the numbers of its images."""

    def __init__(self, source: Images, recipe: Recipe) -> None:
        self.pace = Pace.of(len(source), recipe)
        self.images, self.labels = jax.device_put((source.images, source.labels))
        self._order = Order(len(source), recipe)

    def arguments(self, step: int) -> tuple[Any, ...]:
        return self.images, self.labels, self._order[step]

    def select(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, labels, batch = arguments
        return images[batch], labels[batch]

    def close(self) -> None:
        pass


class HostFed:
    """A set in the host's memory; a step gets its images, each device those it works on."""

    def __init__(self, source: Images, recipe: Recipe, layout: Layout) -> None:
        self.pace = Pace.of(len(source), recipe)
        self._source, self._layout = source, layout
        self._order = Order(len(source), recipe)

    def arguments(self, step: int) -> tuple[Any, ...]:
        batch = self._order[step]
        both = (self._source.images, self._source.labels)
        return tuple(self._layout.rows(len(batch), chosen(array, batch)) for array in both)

    def select(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, labels = arguments
        return images, labels

    def close(self) -> None:
        pass


class Stream:
    """A set that is decoded as it is read; a step gets its images, of which each process decodes its own part."""

    def __init__(self, source: Encoded, recipe: Recipe, side: int, layout: Layout) -> None:
        self.pace = Pace.of(len(source), recipe)
        self._source, self._recipe, self._side, self._layout = source, recipe, side, layout
        self._next = -1
        self._batches: Iterator[dict[str, Any]] = iter(())

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
                across_epochs=self._recipe.across_epochs,
                shard_index=jax.process_index(),
                shard_count=jax.process_count(),
            )
        self._next = step + 1
        batch = next(self._batches)
        return tuple(local_rows(self._layout, batch[name]) for name in ("image", "label"))

    def select(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, labels = arguments
        return images, labels

    def close(self) -> None:
        if hasattr(self._batches, "close"):
            self._batches.close()


def make_feed(dataset: Dataset, recipe: Recipe, layout: Layout) -> Feed:
    if not isinstance(dataset.train, Images):
        return Stream(dataset.train, recipe, dataset.image_shape[0], layout)
    if layout.devices == 1:
        return Resident(dataset.train, recipe)
    return HostFed(dataset.train, recipe, layout)


BATCH = 500
STREAMED_BATCH = 100


class EvalBatch(NamedTuple):
    images: Any
    labels: Any
    weight: Any  # 0 for what only fills the last batch


def make_eval_batches(dataset: Dataset, recipe: Recipe, layout: Layout | None = None) -> Iterator[EvalBatch]:
    """Every test image once; the last batch is filled up with weight 0."""
    layout, test = layout or OneDevice(), dataset.test
    if isinstance(test, Images):
        return _eval_batches_in_memory(test, layout)
    return _eval_batches_streamed(test, dataset.image_shape[0], recipe, layout)


def _eval_batches_in_memory(test: Images, layout: Layout) -> Iterator[EvalBatch]:
    size = _multiple(min(BATCH, len(test)), layout.devices)
    for start in range(0, len(test), size):
        rows = np.arange(start, start + size)
        weight = (rows < len(test)).astype(np.float32)
        rows = np.minimum(rows, len(test) - 1)
        takes = chosen(test.images, rows), chosen(test.labels, rows), weight.__getitem__
        yield EvalBatch(*(layout.rows(size, take) for take in takes))


def _eval_batches_streamed(test: Encoded, side: int, recipe: Recipe, layout: Layout) -> Iterator[EvalBatch]:
    batches = eval_batches(
        test,
        batch_size=_multiple(STREAMED_BATCH, layout.devices),
        image_size=side,
        workers=recipe.workers,
        shard_index=jax.process_index(),
        shard_count=jax.process_count(),
    )
    for batch in batches:
        yield EvalBatch(*(local_rows(layout, batch[name]) for name in ("image", "label", "weight")))


def _multiple(count: int, of: int) -> int:
    """The least multiple that is not smaller."""
    return -(-count // of) * of
