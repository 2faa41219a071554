"""Streams batches of large sets, decoded during training in chunks by Grain's worker processes.

The sequence of batches is a pure function of the seed: neither the number of workers nor where a run was interrupted
changes it, and the step number is all that a checkpoint has to keep. A chunk, the unit of work, is a run of successive
images, read, decoded and cropped; it is a pure function of its number, so any process may make any chunk.
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
from looksam.trainer.data.reading.decode import BadImageError, bad_image_at, eval_crop, open_image, train_crop
from looksam.trainer.data.reading.order import ShuffledOrder, generator, rows_per_epoch

Batch = dict[str, np.ndarray]
Crop = Callable[[Any], np.ndarray]

NONE_BAD = -1  # in place of a row number, for an image that is readable
_ENDLESS = 2**62  # the length of an endless stream, in chunks

_LOG = logging.getLogger("looksam.trainer.data")
_CHUNK = 64  # images that a worker makes at once: a large batch is shared among the workers
_SMALLEST_CHUNK = 16
_CHUNKS_AHEAD = 4  # that each worker prefetches


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
    """Yields shuffled, randomly cropped and flipped batches: {"image": uint8 (b, s, s, 3), "label": int32 (b,)}.

    Args:
      source: the training images.
      batch_size: the size of the global batch, over all hosts.
      seed: the order is a function of (seed, epoch), a crop of (seed, position in the stream).
      image_size: the side s.
      start_step: the step of the first batch; skipping those before it costs nothing.
      num_steps: the step before which the stream ends, counted from step 0; by default it is endless.
      workers: processes that decode; 0 decodes in threads of this process.
      across_epochs: whether batches may span epochs, instead of dropping an epoch's incomplete last batch.
      shard_index: this host's part of each global batch: the parts of all hosts, in order, are the batch.
      shard_count: the number of parts; b = batch_size / shard_count.
    """
    per_epoch = rows_per_epoch(len(source), batch_size, across_epochs)
    _check_sizes(image_size, workers)
    if start_step < 0:
        raise ValueError(f"start_step={start_step} is negative; count steps from 0.")
    chunking = _chunking(batch_size, shard_index, shard_count, start_step, num_steps)
    order = ShuffledOrder(len(source), seed, per_epoch, source.blocks(), source.rows.blocks_at_once())
    return _run_grain(TrainChunks(source, chunking, order, seed, image_size), chunking.chunks_per_step, workers)


def eval_batches(
    source: Encoded,
    *,
    batch_size: int,
    image_size: int,
    workers: int = 0,
    shard_index: int = 0,
    shard_count: int = 1,
) -> Iterator[Batch]:
    """Yields every image once, centre-cropped: {"image", "label", "weight": float32 (b,)}.

    The last batch is padded with images of weight 0. Unreadable images that are skipped have weight 0 too.
    """
    _check_sizes(image_size, workers)
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is out of range; pass batch_size >= 1.")
    chunking = _chunking(batch_size, shard_index, shard_count, 0, -(-len(source) // batch_size))
    return _run_grain(EvalChunks(source, chunking, image_size), chunking.chunks_per_step, workers)


def _check_sizes(image_size: int, workers: int) -> None:
    if image_size < 1:
        raise ValueError(f"image_size={image_size} is out of range; pass image_size >= 1.")
    if workers < 0:
        raise ValueError(f"workers={workers} is negative; pass 0 to decode in this process, or a number of processes.")


@dataclass(frozen=True)
class Chunking:
    """How this host's part of the global sequence of images is cut into chunks.

    A global batch is split into ``shard_count`` successive parts, one per host, and a part into chunks.
    """

    batch_size: int
    chunk: int
    start_step: int = 0
    num_steps: int | None = None  # steps in all, from step 0 on; None is endless
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
        """Returns the positions of a chunk in the global sequence."""
        step, part = divmod(number, self.chunks_per_step)
        shard = self.shard_index * (self.batch_size // self.shard_count)
        start = (self.start_step + step) * self.batch_size + shard + part * self.chunk
        return np.arange(start, start + self.chunk)


def _chunking(batch_size: int, shard_index: int, shard_count: int, start_step: int, num_steps: int | None) -> Chunking:
    if shard_count < 1 or batch_size % shard_count:
        raise ValueError(
            f"shard_count={shard_count} does not divide batch_size={batch_size}; pass a batch size that is a "
            "multiple of the number of hosts."
        )
    if not 0 <= shard_index < shard_count:
        raise ValueError(f"shard_index={shard_index} is outside 0..{shard_count - 1}; pass this host's number.")
    chunk = _chunk_size(batch_size // shard_count)
    return Chunking(batch_size, chunk, start_step, num_steps, shard_index, shard_count)


def _chunk_size(local_batch: int) -> int:
    """Returns the largest useful divisor of the batch, or the whole batch if there is none."""
    sizes = range(min(_CHUNK, local_batch), _SMALLEST_CHUNK - 1, -1)
    return next((size for size in sizes if local_batch % size == 0), local_batch)


@dataclass(frozen=True, eq=False)
class TrainChunks:
    """Chunks of randomly cropped and flipped images in shuffled order.

    An unreadable image that is skipped is replaced by the next readable one.
    """

    source: Encoded
    chunking: Chunking
    order: ShuffledOrder
    seed: int
    size: int

    def __len__(self) -> int:
        return len(self.chunking)

    def __getitem__(self, number: int) -> Batch:
        positions = self.chunking.positions(number)
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
    """Chunks of centre crops in the order of the data, with weight 1 for images, 0 for padding and unreadable ones."""

    source: Encoded
    chunking: Chunking
    size: int

    def __len__(self) -> int:
        return len(self.chunking)

    def __getitem__(self, number: int) -> Batch:
        positions = self.chunking.positions(number)
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
        "bad": np.full(count, NONE_BAD, np.int64),  # the unreadable row; removed before the trainer sees it
    }


def _crop_or_none(source: Encoded, row: int, crop: Crop) -> np.ndarray | None:
    try:
        data, place = source.read(row), source.place(row)
        with bad_image_at(place):
            return crop(open_image(data))
    except BadImageError:
        if source.on_bad_image == "fail":
            raise
        return None


def _run_grain(chunks: TrainChunks | EvalChunks, chunks_per_step: int, workers: int) -> Iterator[Batch]:
    grain = require("grain")
    threads = min(4, os.cpu_count() or 1) if workers == 0 else 0  # a worker decodes in its own main thread
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=_CHUNKS_AHEAD if threads else 0)
    stream = grain.MapDataset.source(chunks).to_iter_dataset(reading)
    if workers:
        _mark_absl_flags_parsed()
        options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_CHUNKS_AHEAD)
        stream = stream.mp_prefetch(options, worker_init_fn=_start_worker)
    return _join_chunks(stream, chunks_per_step, chunks.source)


def _join_chunks(stream: Any, chunks_per_step: int, source: Encoded) -> Iterator[Batch]:
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


def _mark_absl_flags_parsed() -> None:
    """Marks absl's flags as parsed, with their defaults: Grain needs that to start workers."""
    flags = require("absl.flags").FLAGS
    if not flags.is_parsed():
        flags.mark_as_parsed()


def _start_worker(index: int, count: int) -> None:
    """Leaves Ctrl-C to the main process, and ends the worker if its main process was killed."""
    del index, count
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
