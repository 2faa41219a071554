"""The crops of streamed images, made on the host during decoding: random for training, central for evaluation."""

import math
from typing import Any

import numpy as np

from looksam.trainer.data.reading.dataset import require
from looksam.trainer.data.reading.decode import to_rgb

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
