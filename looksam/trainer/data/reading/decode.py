"""Decoding with Pillow: encoded bytes to RGB pixels, one image at a time or a whole small set into memory.

Whatever is wrong with an image becomes a ``BadImageError`` that names its place.
"""

import io
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from looksam.trainer.data.reading.dataset import Encoded, Images, require

MAX_DECODED_BYTES = 2**30  # of train and test together; larger sets are streamed
# A closed list: Pillow would otherwise also try formats that pass the bytes to an external program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

_LOG = logging.getLogger("looksam.trainer.data")
_IMAGES_PER_TASK = 256  # that a thread decodes at once


class BadImageError(ValueError):
    """An image that cannot be decoded."""


@contextmanager
def bad_image_at(place: str) -> Iterator[None]:
    """Turns any error that Pillow raises on damaged bytes into a BadImageError that names the image's place."""
    try:
        yield
    except (MemoryError, ImportError):
        raise
    except Exception as error:
        raise BadImageError(
            f"{place}: unreadable image ({_reason(error)}); "
            "replace the image, or pass on_bad_image='skip' to leave it out."
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, require("PIL").UnidentifiedImageError):  # its own message is the address of a buffer
        return f"none of {', '.join(FORMATS)}"
    return str(error) or type(error).__name__


def open_image(data: bytes) -> Any:
    """Opens an image: its header is read, its pixels are not decoded yet."""
    return require("PIL.Image").open(io.BytesIO(data), formats=FORMATS)


def to_rgb(image: Any) -> Any:
    """Converts greyscale, palette, CMYK and 16-bit images to 8-bit RGB, without transparency and EXIF rotation."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16 bits per pixel: keep the upper 8, where Pillow would clip
        return require("PIL.Image").fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # as Pillow recommends
    return image.convert("RGB")


def decode(data: bytes, place: str) -> np.ndarray:
    """Decodes a whole image, uint8 (h, w, 3)."""
    with bad_image_at(place):
        return np.asarray(to_rgb(open_image(data)))


class _OtherSizeError(Exception):
    """An image of another size than the first one."""


def decode_small_sets(train: Encoded, test: Encoded, limit: int = MAX_DECODED_BYTES) -> tuple[Images, Images] | None:
    """Decodes both sets into memory; None if they exceed the limit in bytes or their images differ in size."""
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
        for row, image in _decode_rows(source, range(start, min(start + _IMAGES_PER_TASK, len(source)))):
            if image is None:
                bad.append(row)
            elif image.shape != shape:
                raise _OtherSizeError
            else:
                images[row] = image

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            list(pool.map(fill, range(0, len(source), _IMAGES_PER_TASK)))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return _leave_out(Images(images, source.labels), sorted(bad), source)


def _decode_rows(source: Encoded, rows: range) -> Iterator[tuple[int, np.ndarray | None]]:
    for row in rows:
        try:
            yield row, decode(source.read(row), source.place(row))
        except BadImageError:
            if source.on_bad_image == "fail":
                raise
            yield row, None


def _leave_out(images: Images, bad: list[int], source: Encoded) -> Images:
    if not bad:
        return images
    if len(bad) == len(images):
        raise BadImageError(f"{source.place(0)} and all rows after it: no readable image; check the files.")
    _LOG.warning(
        "%d of %d images are unreadable and left out, the first: %s", len(bad), len(images), source.place(bad[0])
    )
    return images.take(np.delete(np.arange(len(images)), bad))
