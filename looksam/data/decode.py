"""Encoded bytes to RGB pixels, with Pillow. Whatever is wrong with an image becomes one error that names its place."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from looksam.data.needs import require

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
