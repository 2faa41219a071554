"""What one unit of work of the stream is: a run of successive images, read, decoded and cropped.

Both kinds of chunk are pure functions of their number, so any process may make any of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from looksam.data.crops import eval_crop, train_crop
from looksam.data.dataset import Encoded
from looksam.data.decode import BadImageError, naming, open_image
from looksam.data.order import Order
from looksam.data.seeds import generator

Batch = dict[str, np.ndarray]
Crop = Callable[[Any], np.ndarray]

NONE_BAD = -1
_ENDLESS = 2**62


@dataclass(frozen=True)
class Layout:
    """Which positions of the global sequence of images this host's chunks hold.

    A global batch is divided into ``shard_count`` successive parts, one a host, and a part into chunks.
    """

    batch_size: int
    chunk: int
    start_step: int = 0
    num_steps: int | None = None  # steps in all, from step 0 on; None goes on for ever
    shard_index: int = 0
    shard_count: int = 1

    @property
    def chunks_per_step(self) -> int:
        return self.batch_size // self.shard_count // self.chunk

    def __len__(self) -> int:
        if self.num_steps is None:
            return _ENDLESS
        return max(0, self.num_steps - self.start_step) * self.chunks_per_step

    def positions(self, number: int) -> np.ndarray:
        step, part = divmod(number, self.chunks_per_step)
        shard = self.shard_index * (self.batch_size // self.shard_count)
        start = (self.start_step + step) * self.batch_size + shard + part * self.chunk
        return np.arange(start, start + self.chunk)


@dataclass(frozen=True, eq=False)
class TrainChunks:
    """Randomly cropped and flipped images in the shuffled order; an unreadable one gives way to the next readable."""

    source: Encoded
    layout: Layout
    order: Order
    seed: int
    size: int

    def __len__(self) -> int:
        return len(self.layout)

    def __getitem__(self, number: int) -> Batch:
        positions = self.layout.positions(number)
        batch = _blank(len(positions), self.size)
        for i, (position, row) in enumerate(zip(positions, self.order.rows(positions), strict=True)):
            rng = generator("crop", self.seed, int(position))
            self._fill(batch, i, int(row), rng)
        return batch

    def _fill(self, batch: Batch, i: int, row: int, rng: np.random.Generator) -> None:
        for offset in range(len(self.source)):
            readable = (row + offset) % len(self.source)
            image = _crop_or_none(self.source, readable, lambda image: train_crop(image, self.size, rng))
            if image is not None:
                batch["image"][i], batch["label"][i] = image, self.source.labels[readable]
                return
            batch["bad"][i] = row
        raise BadImageError(f"{self.source.place(0)} and all rows after it: no readable image; check the files.")


@dataclass(frozen=True, eq=False)
class EvalChunks:
    """Centre crops in the order of the data; weight 1 where there is an image, 0 for padding and unreadable ones."""

    source: Encoded
    layout: Layout
    size: int

    def __len__(self) -> int:
        return len(self.layout)

    def __getitem__(self, number: int) -> Batch:
        positions = self.layout.positions(number)
        batch = _blank(len(positions), self.size)
        batch["weight"] = np.zeros(len(positions), np.float32)
        for i, row in enumerate(positions.tolist()):
            if row < len(self.source):
                self._fill(batch, i, row)
        return batch

    def _fill(self, batch: Batch, i: int, row: int) -> None:
        image = _crop_or_none(self.source, row, lambda image: eval_crop(image, self.size))
        if image is None:
            batch["bad"][i] = row
        else:
            batch["image"][i], batch["label"][i], batch["weight"][i] = image, self.source.labels[row], 1


def _blank(count: int, size: int) -> Batch:
    return {
        "image": np.zeros((count, size, size, 3), np.uint8),
        "label": np.zeros(count, np.int32),
        "bad": np.full(count, NONE_BAD, np.int64),  # the row that was unreadable; taken off before the trainer sees it
    }


def _crop_or_none(source: Encoded, row: int, crop: Crop) -> np.ndarray | None:
    try:
        data, place = source.read(row), source.place(row)
        with naming(place):
            return crop(open_image(data))
    except BadImageError:
        if source.on_bad_image == "fail":
            raise
        return None
