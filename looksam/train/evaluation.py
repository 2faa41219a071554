"""Every image of the test set once, in batches that divide over the devices."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from looksam.data import Dataset, Encoded, Images, eval_batches
from looksam.train.layout import Layout, OneDevice, chosen, local_rows
from looksam.train.recipe import Recipe

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
