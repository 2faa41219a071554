"""What one unit of work of the stream is: a run of successive images, read, decoded and cropped.

Both kinds of chunk are pure functions of their number, so any process may make any of them.

Batches of large sets, decoded while training goes on, by Grain's worker processes.

The sequence of batches is a pure function of the seed: neither the number of workers nor where the run was
interrupted changes it, and the step number is all that a checkpoint has to keep.
"""

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from looksam.trainer.data.reading.dataset import Encoded, require
from looksam.trainer.data.reading.decode import BadImageError, eval_crop, naming, open_image, train_crop
from looksam.trainer.data.reading.order import Order, generator, rows_per_epoch

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


_LOG = logging.getLogger("looksam.trainer.data")
_CHUNK = 64  # images a worker makes at once: a large batch is shared among the workers
_SMALLEST_CHUNK = 16
_CHUNKS_AHEAD = 4  # for each worker


def train_batches(
    source: Encoded,
    *,
    batch_size: int,
    seed: int,
    image_size: int,
    start_step: int = 0,
    num_steps: int | None = None,
    workers: int = 0,
    across_epochs: bool = False,
    shard_index: int = 0,
    shard_count: int = 1,
) -> Iterator[Batch]:
    """Shuffled, randomly cropped and flipped: {"image": uint8 (b, s, s, 3), "label": int32 (b,)}.

    Args:
      source: the training images.
      batch_size: of the global batch, over all hosts.
      seed: of order and crops. Order is a function of (seed, epoch), a crop of (seed, position in the stream).
      image_size: s.
      start_step: the first batch to give; those before it cost nothing.
      num_steps: where to end, counted from step 0 on; by default never.
      workers: processes that decode; 0 decodes in threads of this one.
      across_epochs: let batches run on over the end of an epoch, instead of dropping its incomplete last batch.
      shard_index: which part of each global batch is given: the parts of all hosts, in order, are the batch.
      shard_count: of how many; b = batch_size / shard_count.
    """
    per_epoch = rows_per_epoch(len(source), batch_size, across_epochs)
    _check_sizes(image_size, workers)
    if start_step < 0:
        raise ValueError(f"start_step={start_step} is negative; count steps from 0.")
    layout = _layout(batch_size, shard_index, shard_count, start_step, num_steps)
    order = Order(len(source), seed, per_epoch, source.blocks(), source.rows.blocks_at_once())
    return _run(TrainChunks(source, layout, order, seed, image_size), layout.chunks_per_step, workers)


def eval_batches(
    source: Encoded,
    *,
    batch_size: int,
    image_size: int,
    workers: int = 0,
    shard_index: int = 0,
    shard_count: int = 1,
) -> Iterator[Batch]:
    """Every image once, centre-cropped: {"image", "label", "weight": float32 (b,)}.

    The last batch is filled up with images of weight 0. Unreadable images have weight 0 too, where they are skipped.
    """
    _check_sizes(image_size, workers)
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is out of range; pass batch_size >= 1.")
    layout = _layout(batch_size, shard_index, shard_count, 0, -(-len(source) // batch_size))
    return _run(EvalChunks(source, layout, image_size), layout.chunks_per_step, workers)


def _run(chunks: TrainChunks | EvalChunks, chunks_per_step: int, workers: int) -> Iterator[Batch]:
    grain = require("grain")
    threads = min(4, os.cpu_count() or 1) if workers == 0 else 0  # a worker decodes in its own main thread
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_CHUNKS_AHEAD if threads else 0)
    stream = grain.MapDataset.source(chunks).to_iter_dataset(reading)
    if workers:
        _settle_flags()
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_CHUNKS_AHEAD)
        stream = stream.mp_prefetch(options, worker_init_fn=_start_worker)
    return _joined(stream, chunks_per_step, chunks.source)


def _joined(stream: Any, chunks_per_step: int, source: Encoded) -> Iterator[Batch]:
    seen: set[int] = set()
    chunks = iter(stream)
    try:
        while parts := list(islice(chunks, chunks_per_step)):
            batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            _report_bad(batch.pop("bad"), seen, source)
            yield batch
    finally:
        chunks.close()


def _report_bad(bad: np.ndarray, seen: set[int], source: Encoded) -> None:
    for row in set(bad[bad != NONE_BAD].tolist()) - seen:
        seen.add(row)
        _LOG.warning("unreadable image left out: %s (%d so far)", source.place(row), len(seen))


def _settle_flags() -> None:
    """Grain reads absl flags when it starts workers, which fails where no absl program has parsed any: use defaults."""
    flags = require("absl.flags").FLAGS
    if not flags.is_parsed():
        flags.mark_as_parsed()


def _start_worker(index: int, count: int) -> None:
    """Ctrl-C is the main process's to handle, and a worker whose main process was killed must not live on."""
    del index, count
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _layout(batch_size: int, shard_index: int, shard_count: int, start_step: int, num_steps: int | None) -> Layout:
    if shard_count < 1 or batch_size % shard_count:
        raise ValueError(
            f"shard_count={shard_count} does not divide batch_size={batch_size}; pass a batch size that is a "
            "multiple of the number of hosts."
        )
    if not 0 <= shard_index < shard_count:
        raise ValueError(f"shard_index={shard_index} is outside 0..{shard_count - 1}; pass this host's number.")
    chunk = _chunk(batch_size // shard_count)
    return Layout(batch_size, chunk, start_step, num_steps, shard_index, shard_count)


def _chunk(local_batch: int) -> int:
    """The largest useful divisor of the batch; the whole batch where it has none."""
    sizes = range(min(_CHUNK, local_batch), _SMALLEST_CHUNK - 1, -1)
    return next((size for size in sizes if local_batch % size == 0), local_batch)


def _check_sizes(image_size: int, workers: int) -> None:
    if image_size < 1:
        raise ValueError(f"image_size={image_size} is out of range; pass image_size >= 1.")
    if workers < 0:
        raise ValueError(f"workers={workers} is negative; pass 0 to decode in this process, or a number of processes.")
