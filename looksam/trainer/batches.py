"""The batches of a run: which images each step sees, placed on the devices that process them.

This is the first stop of a batch on its way to the optimizer. Images come from ``looksam.trainer.data.reading``, as
arrays or as a stream that is decoded during training; ``step.py`` takes over inside the compiled step.

The batch of step i depends on the seed and on i alone, so a checkpoint stores the step number and nothing else about
the data.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from looksam.trainer.data import (
    DataError,
    Dataset,
    Encoded,
    Images,
    eval_batches,
    hold_out,
    load_dataset,
    rows_per_epoch,
    train_batches,
    with_label_noise,
)
from looksam.trainer.data.reading.order import ShuffledOrder
from looksam.trainer.parallel import Layout, SingleDeviceLayout
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import RunError

SPLIT_SEED = 0  # of the held-out images and of the label noise: the same data for every seed of a run
Split = Literal["validation", "test"]
EVAL_BATCH = 500
STREAMED_EVAL_BATCH = 100


class UnreadableError(RunError):
    """Images that were there when a run began cannot be read any more."""


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Turns what reading the images of a batch raises into an UnreadableError."""
    try:
        yield
    except (OSError, DataError) as error:
        raise UnreadableError(str(error)) from error


# --- the dataset --------------------------------------------------------------------------------------------------


def load(recipe: Recipe) -> Dataset:
    """The dataset of a recipe, prepared as it says."""
    return prepared(recipe, read(recipe))


def read(recipe: Recipe, **options: Any) -> Dataset:
    """The dataset that a recipe names, whole and unchanged; ``options`` are further ones of ``load_dataset``."""
    return load_dataset(
        recipe.dataset,
        data_dir=recipe.data_dir,
        download=recipe.download,
        on_bad_image=recipe.on_bad_image,
        image_column=recipe.image_column,
        label_column=recipe.label_column,
        num_classes=recipe.num_classes,
        test_split=recipe.test_split,
        image_size=recipe.image_size,
        **options,
    )


def prepared(recipe: Recipe, dataset: Dataset) -> Dataset:
    """The dataset with the recipe's classes, validation split, size limit, label noise and image size."""
    if recipe.classes:
        dataset = _first_classes(dataset, recipe.classes)
    if dataset.num_classes < 2:
        raise ValueError(
            f"{dataset.name} has a single class, {dataset.class_names[0]!r}, which leaves nothing to tell apart; "
            "check --data-dir and --label-column."
        )
    train: Any = dataset.train
    if recipe.validation:
        train, held_out = hold_out(train, recipe.validation, SPLIT_SEED, setting="validation")
        dataset = dataclasses.replace(dataset, validation=held_out)
    if recipe.train_limit and recipe.train_limit < len(train):
        _, train = hold_out(train, recipe.train_limit, SPLIT_SEED)
    if recipe.label_noise:
        train = train.with_labels(with_label_noise(train.labels, recipe.label_noise, dataset.num_classes, SPLIT_SEED))
    if recipe.batch_size > len(train) and not recipe.across_epochs:
        raise ValueError(
            f"batch_size={recipe.batch_size} is larger than the {len(train)} training images; pass at most that, "
            "or --across-epochs to let batches continue over the end of an epoch."
        )
    side = recipe.image_size
    return resized(dataclasses.replace(dataset, train=train), (side, side) if side else dataset.image_shape[:2])


def _first_classes(dataset: Dataset, count: int) -> Dataset:
    if count > dataset.num_classes:
        raise ValueError(f"classes={count} is more than the {dataset.num_classes} of {dataset.name}; pass fewer.")
    splits: dict[str, Any] = {
        name: split.take(np.flatnonzero(split.labels < count)) for name, split in dataset.splits().items()
    }
    return dataclasses.replace(dataset, num_classes=count, class_names=dataset.class_names[:count], **splits)


def resized(dataset: Dataset, size: tuple[int, int]) -> Dataset:
    """The dataset with images of this height and width; those that are streamed will be cropped to it."""
    if dataset.image_shape[:2] == size:
        return dataset
    splits: dict[str, Any] = {
        name: Images(resize(split.images, size), split.labels) if isinstance(split, Images) else split
        for name, split in dataset.splits().items()
    }
    return dataclasses.replace(dataset, image_shape=(*size, dataset.image_shape[2]), **splits)


def resize(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 images (n, h, w, c) with this height and width."""
    return np.concatenate([np.asarray(_resize(images[i : i + 1000], size)) for i in range(0, len(images), 1000)])


@functools.partial(jax.jit, static_argnums=1)
def _resize(images: jax.Array, size: tuple[int, int]) -> jax.Array:
    shape = (images.shape[0], *size, images.shape[3])
    smooth = jax.image.resize(images.astype(jnp.float32), shape, "bilinear", antialias=True)
    return jnp.clip(jnp.round(smooth), 0, 255).astype(jnp.uint8)


# --- training batches ---------------------------------------------------------------------------------------------


class EpochSchedule(NamedTuple):
    """Converts between steps and epochs."""

    batch_size: int
    images_per_epoch: int

    @classmethod
    def of(cls, image_count: int, recipe: Recipe) -> "EpochSchedule":
        return cls(recipe.batch_size, rows_per_epoch(image_count, recipe.batch_size, recipe.across_epochs))

    def steps(self, epochs: int) -> int:
        """The number of steps in so many epochs, at least one."""
        return max(1, epochs * self.images_per_epoch // self.batch_size)

    def epochs(self, step: int) -> float:
        """The number of epochs after ``step`` steps, with its fraction."""
        return step * self.batch_size / self.images_per_epoch

    def whole_epochs(self, step: int) -> int:
        """The number of epochs that are complete after ``step`` steps."""
        return step * self.batch_size // self.images_per_epoch


class TrainBatches:
    """The training batches of a run: ``arguments(step)`` on the host, then ``to_batch`` inside the compiled step."""

    def __init__(self, image_count: int, recipe: Recipe) -> None:
        self.epoch_schedule = EpochSchedule.of(image_count, recipe)

    def arguments(self, step: int) -> tuple[Any, ...]:
        """What the compiled program of this step receives: by default its images and labels."""
        raise NotImplementedError

    def to_batch(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Turn these arguments into images and labels."""
        images, labels = arguments
        return images, labels

    def close(self) -> None:
        """Stop reading ahead."""


class InMemoryBatches(TrainBatches):
    """Batches of a dataset that is in memory, shuffled anew for each epoch."""

    def __init__(self, source: Images, recipe: Recipe) -> None:
        super().__init__(len(source), recipe)
        self._order = ShuffledOrder(len(source), recipe.seed, self.epoch_schedule.images_per_epoch)

    def rows(self, step: int) -> np.ndarray:
        """The rows of the dataset that make up a step's batch."""
        size = self.epoch_schedule.batch_size
        return self._order.rows(np.arange(step * size, (step + 1) * size))


class DeviceBatches(InMemoryBatches):
    """Batches of a dataset that lies on the one device: a step receives the row numbers and gathers its images."""

    def __init__(self, source: Images, recipe: Recipe) -> None:
        super().__init__(source, recipe)
        self.images, self.labels = jax.device_put((source.images, source.labels))

    def arguments(self, step: int) -> tuple[Any, ...]:
        return self.images, self.labels, self.rows(step)

    def to_batch(self, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
        images, labels, rows = arguments
        return images[rows], labels[rows]


class HostBatches(InMemoryBatches):
    """Batches of a dataset in the host's memory: each device receives the images that it processes."""

    def __init__(self, source: Images, recipe: Recipe, layout: Layout) -> None:
        super().__init__(source, recipe)
        self._source, self._layout = source, layout

    def arguments(self, step: int) -> tuple[Any, ...]:
        rows = self.rows(step)
        arrays = self._source.images, self._source.labels
        return tuple(self._layout.put_batch(len(rows), row_reader(array, rows)) for array in arrays)


class StreamedBatches(TrainBatches):
    """Batches that are decoded while training runs: each process decodes its own part of a batch."""

    def __init__(self, source: Encoded, recipe: Recipe, side: int, layout: Layout) -> None:
        super().__init__(len(source), recipe)
        self._source, self._recipe, self._side, self._layout = source, recipe, side, layout
        self._next_step = -1
        self._stream: Iterator[dict[str, Any]] = iter(())

    def arguments(self, step: int) -> tuple[Any, ...]:
        if step != self._next_step:
            self._restart(step)
        self._next_step = step + 1
        batch = next(self._stream)
        return tuple(put_local_rows(self._layout, batch[name]) for name in ("image", "label"))

    def _restart(self, step: int) -> None:
        self.close()
        self._stream = train_batches(
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

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()


def make_train_batches(dataset: Dataset, recipe: Recipe, layout: Layout) -> TrainBatches:
    """The training batches of a run, from wherever the dataset fits."""
    if not isinstance(dataset.train, Images):
        return StreamedBatches(dataset.train, recipe, dataset.image_shape[0], layout)
    if layout.devices == 1:
        return DeviceBatches(dataset.train, recipe)
    return HostBatches(dataset.train, recipe, layout)


# --- test batches -------------------------------------------------------------------------------------------------


class EvalBatch(NamedTuple):
    """Test images with a weight each: 1, or 0 for those that only fill up the last batch."""

    images: Any
    labels: Any
    weight: Any


def make_eval_batches(
    dataset: Dataset, recipe: Recipe, layout: Layout | None = None, split: Split = "test"
) -> Iterator[EvalBatch]:
    """Every image of a split once, in batches that divide evenly over the devices."""
    layout, test = layout or SingleDeviceLayout(), dataset.test if split == "test" else dataset.validation
    if test is None:
        raise ValueError(f"{dataset.name} has no validation split; pass --validation, or evaluate on the test set.")
    if isinstance(test, Images):
        return _eval_batches_in_memory(test, layout)
    return _eval_batches_streamed(test, dataset.image_shape[0], recipe, layout)


def _eval_batches_in_memory(test: Images, layout: Layout) -> Iterator[EvalBatch]:
    size = _round_up(min(EVAL_BATCH, len(test)), layout.devices)
    for start in range(0, len(test), size):
        rows = np.arange(start, start + size)
        weight = (rows < len(test)).astype(np.float32)
        rows = np.minimum(rows, len(test) - 1)
        takes = row_reader(test.images, rows), row_reader(test.labels, rows), weight.__getitem__
        yield EvalBatch(*(layout.put_batch(size, take) for take in takes))


def _eval_batches_streamed(test: Encoded, side: int, recipe: Recipe, layout: Layout) -> Iterator[EvalBatch]:
    batches = eval_batches(
        test,
        batch_size=_round_up(STREAMED_EVAL_BATCH, layout.devices),
        image_size=side,
        workers=recipe.workers,
        shard_index=jax.process_index(),
        shard_count=jax.process_count(),
    )
    for batch in batches:
        yield EvalBatch(*(put_local_rows(layout, batch[name]) for name in ("image", "label", "weight")))


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


# --- onto the devices ---------------------------------------------------------------------------------------------


def row_reader(array: np.ndarray, rows: np.ndarray) -> Callable[[slice], np.ndarray]:
    """For ``Layout.put_batch``: takes parts of the batch ``array[rows]``, copying only what is asked for."""
    return lambda part: array[rows[part]]


def put_local_rows(layout: Layout, local: np.ndarray) -> jax.Array:
    """A batch of which each process holds its own part, in the order of the processes."""
    count, first = len(local) * jax.process_count(), len(local) * jax.process_index()

    def take(part: slice) -> np.ndarray:
        start, stop, _ = part.indices(count)
        return local[max(start - first, 0) : max(stop - first, 0)]

    return layout.put_batch(count, take)
