"""Where a run's batches come from: a set in the memory of the device or the host, or a stream of decoded images.

A feed gives the arguments of step i from (seed, i) alone, so a checkpoint needs no more than the step.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from looksam.data import Dataset, Encoded, Images, batch_across_epochs, epoch_batches, rows_per_epoch, train_batches
from looksam.train.layout import Layout, chosen, local_rows
from looksam.train.recipe import Recipe


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
