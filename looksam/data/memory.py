"""Small sets of images that are all of one size are decoded once and kept in memory."""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from looksam.data.dataset import Encoded, Images
from looksam.data.decode import BadImageError, decode

MAX_DECODED_BYTES = 2**30  # train and test together; past this the set is streamed

_LOG = logging.getLogger("looksam.data")
_CHUNK = 256  # images a thread takes at once


class _OtherSizeError(Exception):
    pass


def in_memory(train: Encoded, test: Encoded, limit: int = MAX_DECODED_BYTES) -> tuple[Images, Images] | None:
    """Both sets decoded, or None where they exceed the limit or hold images of different sizes."""
    if limit <= 0:
        return None
    shape = _first_shape(train)
    if (len(train) + len(test)) * int(np.prod(shape)) > limit:
        return None
    try:
        return _decode_all(train, shape), _decode_all(test, shape)
    except _OtherSizeError:
        return None


def _first_shape(source: Encoded) -> tuple[int, ...]:
    for row in range(len(source)):
        try:
            return decode(source.read(row), source.place(row)).shape
        except BadImageError:
            if source.on_bad_image == "fail":
                raise
    raise BadImageError(f"{source.place(0)} and all rows after it: no readable image; check the files.")


def _decode_all(source: Encoded, shape: tuple[int, ...]) -> Images:
    images = np.empty((len(source), *shape), np.uint8)
    bad: list[int] = []

    def fill(start: int) -> None:
        for row, image in _decoded(source, range(start, min(start + _CHUNK, len(source)))):
            if image is None:
                bad.append(row)
            elif image.shape != shape:
                raise _OtherSizeError
            else:
                images[row] = image

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            list(pool.map(fill, range(0, len(source), _CHUNK)))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return _without(Images(images, source.labels), sorted(bad), source)


def _decoded(source: Encoded, rows: range) -> Iterator[tuple[int, np.ndarray | None]]:
    for row in rows:
        try:
            yield row, decode(source.read(row), source.place(row))
        except BadImageError:
            if source.on_bad_image == "fail":
                raise
            yield row, None


def _without(images: Images, bad: list[int], source: Encoded) -> Images:
    if not bad:
        return images
    if len(bad) == len(images):
        raise BadImageError(f"{source.place(0)} and all rows after it: no readable image; check the files.")
    _LOG.warning(
        "%d of %d images are unreadable and left out, the first: %s", len(bad), len(images), source.place(bad[0])
    )
    return images.take(np.delete(np.arange(len(images)), bad))
