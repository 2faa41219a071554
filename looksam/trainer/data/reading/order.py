"""The order in which images are visited: a pure function of (seed, epoch), so that a step number is a position.

``generator`` is the source of every random choice on the host: order, splits, label noise and crops.
"""

import operator
import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


def epoch_batches(n: int, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the rows of each complete batch of an epoch, int32 (n // batch_size, batch_size)."""
    per_epoch = rows_per_epoch(n, batch_size, across_epochs=False)
    if epoch < 0:
        raise ValueError(f"epoch={epoch} is negative; count epochs from 0.")
    return _permutation(n, seed, epoch)[:per_epoch].reshape(-1, batch_size)


def batch_across_epochs(n: int, batch_size: int, seed: int, step: int) -> np.ndarray:
    """Returns the rows of batch number ``step``, int32 (batch_size,), if batches may span epochs.

    Nothing is dropped, and a batch may be larger than the data: rows i n to (i + 1) n of the sequence are epoch i.
    """
    per_epoch = rows_per_epoch(n, batch_size, across_epochs=True)
    if step < 0:
        raise ValueError(f"step={step} is negative; count steps from 0.")
    return ShuffledOrder(n, seed, per_epoch).rows(np.arange(step * batch_size, (step + 1) * batch_size))


def rows_per_epoch(n: int, batch_size: int, across_epochs: bool) -> int:
    """Returns how many of n rows an epoch visits."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is out of range; pass batch_size >= 1.")
    if n < 1:
        raise ValueError("the training set holds no images; pass at least one.")
    if across_epochs:
        return n
    if batch_size > n:
        raise ValueError(
            f"batch_size={batch_size} is larger than the data ({n} images); "
            "pass a smaller batch, or across_epochs to draw batches across epochs."
        )
    return n - n % batch_size


@dataclass(frozen=True, eq=False)
class ShuffledOrder:
    """The endless sequence of rows: epoch after epoch, each with its own shuffle.

    An epoch visits ``per_epoch`` of the n shuffled rows: n, or fewer to drop an incomplete last batch.

    If rows are read from disk in blocks, only ``window`` blocks are mixed at a time: the blocks are shuffled, and then
    the rows of every ``window`` successive blocks. With window >= the number of blocks this is a full shuffle.
    """

    n: int
    seed: int
    per_epoch: int
    blocks: np.ndarray | None = None  # (n,), the block of each row
    window: int = 1

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Returns the rows at these positions of the sequence, int32."""
        epochs, places = np.divmod(positions, self.per_epoch)
        rows = np.empty(len(positions), np.int32)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._shuffled(int(epoch))[places[here]]
        return rows

    def _shuffled(self, epoch: int) -> np.ndarray:
        return _permutation(self.n, self.seed, epoch) if self.blocks is None else _windowed(self, epoch)


# All batches of an epoch share its permutation: the most recent ones are cached, and are read-only.


@lru_cache(maxsize=4)
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    rows = generator("order", seed, epoch).permutation(n).astype(np.int32)
    rows.flags.writeable = False
    return rows


@lru_cache(maxsize=4)
def _windowed(order: ShuffledOrder, epoch: int) -> np.ndarray:
    rng = generator("order", order.seed, epoch)
    names, block = np.unique(np.asarray(order.blocks), return_inverse=True)
    window = rng.permutation(len(names))[block] // order.window
    return np.lexsort((rng.random(order.n), window)).astype(np.int32)


def generator(purpose: str, seed: int, *more: int) -> np.random.Generator:
    """Returns an independent generator for each (purpose, seed, ...), so that one seed serves all purposes."""
    seed = operator.index(seed)
    if seed < 0:
        raise ValueError(f"seed={seed} is negative; pass an int >= 0.")
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, *more])
