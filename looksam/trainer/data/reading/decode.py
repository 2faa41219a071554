"""Encoded bytes to RGB pixels, with Pillow. Whatever is wrong with an image becomes one error that names its place.

The crops of streamed images, made on the host while decoding.

Small sets of images that are all of one size are decoded once and kept in memory.
"""

import io
import logging
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from looksam.trainer.data.reading.dataset import Encoded, Images, require

# A closed list: Pillow would otherwise also try formats that hand the bytes to an outside program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


class BadImageError(ValueError):
    """An image that cannot be decoded."""


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Turns the many errors that Pillow raises on damaged bytes into a BadImageError with the image's place."""
    try:
        yield
    except (MemoryError, ImportError):
        raise
    except Exception as error:
        raise BadImageError(
            f"{place}: unreadable image ({_reason(error)}); "
            "replace the image, or pass on_bad_image='skip' to go on without it."
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, require("PIL").UnidentifiedImageError):  # its own message is the address of a buffer
        return f"none of {', '.join(FORMATS)}"
    return str(error) or type(error).__name__


def open_image(data: bytes) -> Any:
    """The image with its header read and its pixels not yet decoded."""
    return require("PIL.Image").open(io.BytesIO(data), formats=FORMATS)


def to_rgb(image: Any) -> Any:
    """Greyscale, palette, CMYK and 16-bit images as 8-bit RGB; transparency is dropped, EXIF rotation ignored."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16 bits a pixel: keep the upper 8, where Pillow would clip
        return require("PIL.Image").fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the way that Pillow asks for
    return image.convert("RGB")


def decode(data: bytes, place: str) -> np.ndarray:
    """The whole image, uint8 (h, w, 3)."""
    with naming(place):
        return np.asarray(to_rgb(open_image(data)))


AREA = (0.08, 1.0)  # of the image
RATIO = (3 / 4, 4 / 3)  # width / height
TRIES = 10
EVAL_RESIZE = 256 / 224  # short side before the centre crop, in units of the crop

Box = tuple[float, float, float, float]  # left, top, right, bottom


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Inception's crop: area uniform in AREA, log of the ratio uniform in RATIO, place uniform.

    After ten tries that do not fit into the image, the largest centred box whose ratio is allowed.
    """
    for _ in range(TRIES):
        area = rng.uniform(*AREA) * width * height
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    w, h = min(width, round(height * ratio)), min(height, round(width / ratio))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def train_crop(image: Any, size: int, rng: np.random.Generator) -> np.ndarray:
    """A random box of an opened image, scaled to (size, size, 3), flipped left-right half of the time."""
    box = random_box(image.width, image.height, rng)
    flip = rng.random() < 0.5
    pixels = scaled(image, box, size)
    return pixels[:, ::-1] if flip else pixels


def scaled(image: Any, box: Box, size: int) -> np.ndarray:
    """The box of an opened image, scaled to (size, size, 3)."""
    box = _decode_smaller(image, box, size)
    bilinear = require("PIL.Image").Resampling.BILINEAR
    return np.asarray(to_rgb(image).resize((size, size), bilinear, box=box))


def _decode_smaller(image: Any, box: Box, size: int) -> Box:
    """Has a JPEG decoded at 1/2, 1/4 or 1/8 where the box keeps at least ``size`` pixels; the box in that image."""
    width, height = image.size
    shrink = min(box[2] - box[0], box[3] - box[1]) / size
    drafted = image.draft(None, (math.ceil(width / shrink), math.ceil(height / shrink))) if shrink >= 2 else None
    if drafted is None:
        return box
    factor = drafted[1][2] / width
    right, bottom = min(box[2] * factor, image.width), min(box[3] * factor, image.height)
    return box[0] * factor, box[1] * factor, right, bottom


def eval_crop(image: Any, size: int) -> np.ndarray:
    """The short side scaled to size * 256 / 224, then the centre (size, size, 3)."""
    short = round(size * EVAL_RESIZE)
    scale = short / min(image.size)
    width, height = (max(short, round(side * scale)) for side in image.size)
    bilinear = require("PIL.Image").Resampling.BILINEAR
    pixels = np.asarray(to_rgb(image).resize((width, height), bilinear))
    left, top = (width - size) // 2, (height - size) // 2
    return pixels[top : top + size, left : left + size]


MAX_DECODED_BYTES = 2**30  # train and test together; past this the set is streamed

_LOG = logging.getLogger("looksam.trainer.data")
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
