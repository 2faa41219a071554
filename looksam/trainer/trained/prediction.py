"""Predictions for image files, with exactly the preprocessing of evaluation."""

import glob
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from looksam.trainer.batches import resize
from looksam.trainer.data import BadImageError
from looksam.trainer.data.reading.decode import bad_image_at, eval_crop, open_image, to_rgb
from looksam.trainer.data.reading.image_folder import SUFFIXES
from looksam.trainer.run_folder.checkpoints import CheckpointChoice
from looksam.trainer.trained.trained_model import TrainedModel, load_model

BATCH = 64  # images at a time; the last ones are filled up, so that one program is compiled


class Guess(NamedTuple):
    """A class that an image may have."""

    label: int  # the number of the class
    name: str
    probability: float


class Prediction(NamedTuple):
    """The most probable classes of an image, or why it could not be read."""

    image: str  # its path
    guesses: tuple[Guess, ...]  # the most probable first; () for an unreadable image
    error: str | None = None


def predict_run(
    run: str | pathlib.Path,
    images: Iterable[str | pathlib.Path],
    *,
    top: int = 5,
    checkpoint: CheckpointChoice = "last",
) -> list[Prediction]:
    """Returns the predictions of a trained model for image files, in their order.

    Args:
      run: the folder of a run, whose data need not be there, or of an export.
      images: files, folders (all images in them, at any depth) and glob patterns.
      top: number of classes per image.
      checkpoint: of a run: "last", "best" or a step.
    """
    return list(predict_images(load_model(run, checkpoint), image_files(images), top=top))


def predict_images(model: TrainedModel, files: Iterable[pathlib.Path], *, top: int = 5) -> Iterator[Prediction]:
    """Yields the prediction of each file, in their order. An unreadable one gets an error, and the others go on."""
    if top < 1:
        raise ValueError(f"top={top} is out of range; pass the number of classes to show, at least 1.")
    waiting = list(files)
    for start in range(0, len(waiting), BATCH):
        batch = waiting[start : start + BATCH]
        read = [_read_or_error(path, model) for path in batch]
        pixels = [image for image in read if isinstance(image, np.ndarray)]
        rows = iter(_logits(model, pixels, min(BATCH, len(waiting))) if pixels else ())
        for path, image in zip(batch, read, strict=True):
            if isinstance(image, np.ndarray):
                yield Prediction(str(path), _guesses(next(rows), model.class_names, top))
            else:
                yield Prediction(str(path), (), image)


def image_files(names: Iterable[str | pathlib.Path]) -> list[pathlib.Path]:
    """Returns the image files that paths, folders and glob patterns name. Raises ValueError where one names none."""
    found: list[pathlib.Path] = []
    for name in names:
        path = pathlib.Path(name)
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        elif path.exists() or not glob.has_magic(str(name)):
            files = [path]
        else:
            files = [pathlib.Path(match) for match in sorted(glob.glob(str(name), recursive=True))]
        if not files:
            known = ", ".join(sorted(SUFFIXES))
            raise ValueError(f"{str(name)!r} has no images ({known}); pass files, folders or patterns that do.")
        found += files
    return found


def read_image(path: pathlib.Path, model: TrainedModel) -> np.ndarray:
    """Returns the pixels of an image file as the model takes them: uint8 (height, width, channels).

    Raises BadImageError, or OSError where the file cannot be opened.
    """
    height, width, channels = model.image_shape
    data = path.read_bytes()
    with bad_image_at(str(path)):
        image = open_image(data)
        if channels == 3 and model.crops:
            return eval_crop(image, height)
        pixels = np.asarray(to_rgb(image)) if channels == 3 else np.asarray(image.convert("L"))[..., None]
    if pixels.shape[:2] == (height, width):
        return pixels
    return resize(pixels[None], (height, width))[0]


def _read_or_error(path: pathlib.Path, model: TrainedModel) -> np.ndarray | str:
    try:
        return read_image(path, model)
    except BadImageError as error:
        return str(error.__cause__ or error)
    except OSError as error:
        return error.strerror or str(error)


def _logits(model: TrainedModel, pixels: list[np.ndarray], size: int) -> np.ndarray:
    batch = np.stack(pixels)
    fill = np.repeat(batch[-1:], size - len(batch), axis=0)
    return model.logits(np.concatenate([batch, fill]))[: len(batch)]


def _guesses(logits: np.ndarray, names: tuple[str, ...], top: int) -> tuple[Guess, ...]:
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    probabilities = shifted / shifted.sum()
    order: Any = np.argsort(-probabilities, kind="stable")[:top]
    return tuple(Guess(int(i), names[i], float(probabilities[i])) for i in order)
