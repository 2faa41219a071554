"""Decoding with Pillow: encoded bytes to RGB pixels, a whole small set into memory, or the crops of streamed images.

Whatever is wrong with an image becomes a ``BadImageError`` that names its place.
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

from looksam.trainer.data.reading.dataset import DataError, Encoded, Images, Splits, require

MAX_DECODED_BYTES = 2**30  # of all splits together; larger sets are streamed
# A closed list: Pillow would otherwise also try formats that pass the bytes to an external program.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

_LOG = logging.getLogger("looksam.trainer.data")
_IMAGES_PER_TASK = 256  # that a thread decodes at once


class BadImageError(DataError):
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
            "replace the image, or pass --on-bad-image skip to leave it out."
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


def image_size_of(data: bytes, place: str) -> tuple[int, int]:
    """Returns (width, height) of an image, from its header."""
    with bad_image_at(place):
        return open_image(data).size


class OtherSizeError(Exception):
    """An image of another size than expected."""


def decode_splits(splits: Splits, shape: tuple[int, ...]) -> dict[str, Images]:
    """Decodes all splits into memory. Raises OtherSizeError at an image of another shape."""
    return {name: _decode_all(split, shape) for name, split in splits.named().items()}


def _decode_all(source: Encoded, shape: tuple[int, ...]) -> Images:
    images = np.empty((len(source), *shape), np.uint8)
    bad: list[int] = []

    def fill(start: int) -> None:
        for row, image in _decode_rows(source, range(start, min(start + _IMAGES_PER_TASK, len(source)))):
            if image is None:
                bad.append(row)
            elif image.shape != shape:
                raise OtherSizeError
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


AREA = (0.08, 1.0)  # share of the image
RATIO = (3 / 4, 4 / 3)  # width / height
TRIES = 10
EVAL_RESIZE = 256 / 224  # ratio of the short side, before the centre crop, to the crop

Box = tuple[float, float, float, float]  # left, top, right, bottom


def train_crop(image: Any, size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a random box of an opened image, scaled to (size, size, 3), and flipped with probability 1/2."""
    box = random_box(image.width, image.height, rng)
    flip = rng.random() < 0.5
    pixels = scaled(image, box, size)
    return pixels[:, ::-1] if flip else pixels


def eval_crop(image: Any, size: int) -> np.ndarray:
    """Scales the short side to size * 256 / 224, then returns the centre (size, size, 3)."""
    short = round(size * EVAL_RESIZE)
    scale = short / min(image.size)
    width, height = (max(short, round(side * scale)) for side in image.size)
    bilinear = require("PIL.Image").Resampling.BILINEAR
    pixels = np.asarray(to_rgb(image).resize((width, height), bilinear))
    left, top = (width - size) // 2, (height - size) // 2
    return pixels[top : top + size, left : left + size]


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Draws Inception's crop: area uniform in AREA, log of the ratio uniform in RATIO, position uniform.

    After ten draws that do not fit into the image, returns the largest centred box whose ratio is allowed.
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


def scaled(image: Any, box: Box, size: int) -> np.ndarray:
    """Returns the box of an opened image, scaled to (size, size, 3)."""
    box = _decode_smaller(image, box, size)
    bilinear = require("PIL.Image").Resampling.BILINEAR
    return np.asarray(to_rgb(image).resize((size, size), bilinear, box=box))


def _decode_smaller(image: Any, box: Box, size: int) -> Box:
    """Lets a JPEG be decoded at 1/2, 1/4 or 1/8 if the box keeps ``size`` pixels; returns the box in that image."""
    width, height = image.size
    shrink = min(box[2] - box[0], box[3] - box[1]) / size
    drafted = image.draft(None, (math.ceil(width / shrink), math.ceil(height / shrink))) if shrink >= 2 else None
    if drafted is None:
        return box
    factor = drafted[1][2] / width
    right, bottom = min(box[2] * factor, image.width), min(box[3] * factor, image.height)
    return box[0] * factor, box[1] * factor, right, bottom
