"""A dataset of the user's own: what a function ``load(request) -> Dataset`` returns, checked before it is used.

``request`` has the arguments of ``load_dataset``, such as ``data_dir``, and may be ignored. The simplest dataset is two
pairs of NumPy arrays:

>>> import numpy as np
>>> from looksam.trainer.data import Dataset, Images
>>> def load(request):
...     train, test = (Images(np.zeros((n, 8, 8, 3), np.uint8), np.arange(n) % 2) for n in (20, 10))
...     return Dataset.from_images("mine", train, test, num_classes=2)
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from looksam.trainer.data.reading.dataset import Dataset, Encoded, Images, check_pixels
from looksam.trainer.data.reading.labels import check_labels
from looksam.trainer.own_code import OwnCodeError, load, reported

EXAMPLE = "def load(request) -> looksam.trainer.data.Dataset"


def own_dataset(name: str, request: Any) -> Dataset:
    """Returns the dataset that a user's function loads; raises ``OwnCodeError`` where it does not fit."""
    function = load("dataset", name)
    _check_signature(name, function)
    with reported(f"dataset {name}"):
        dataset = function(request)
    return checked(name, dataset)


def _check_signature(name: str, function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise OwnCodeError(f"dataset {name} cannot be called ({error}); define it as {EXAMPLE}.") from None


def checked(name: str, dataset: Any) -> Dataset:
    """Returns the dataset with int32 labels, if its parts fit together; an error names the part and the fix."""
    if not isinstance(dataset, Dataset):
        raise OwnCodeError(f"dataset {name} returns a {type(dataset).__name__}; define it as {EXAMPLE}.")
    if dataset.num_classes < 2:
        raise OwnCodeError(f"dataset {name} has num_classes={dataset.num_classes}; a classifier needs at least 2.")
    channels = dataset.image_shape[-1]
    if not len(dataset.mean) == len(dataset.std) == channels:
        raise OwnCodeError(
            f"dataset {name} has {len(dataset.mean)} means and {len(dataset.std)} stds for {channels} channels; "
            "give one per channel."
        )
    with reported(f"dataset {name}"):
        fitting: dict[str, Any] = {
            split: _checked_part(split, part, dataset) for split, part in dataset.splits().items()
        }
    return dataclasses.replace(dataset, **fitting)


def _checked_part(split: str, part: Any, dataset: Dataset) -> Images | Encoded:
    if not isinstance(part, Images | Encoded):
        raise OwnCodeError(f"dataset {dataset.name}: {split} is a {type(part).__name__}; pass Images or Encoded.")
    if isinstance(part, Images):
        check_pixels(split, part)
        if part.images.shape[1:] != tuple(dataset.image_shape):
            raise ValueError(
                f"{split}: images are {part.images.shape[1:]}, and image_shape is {dataset.image_shape}; "
                "give all images one shape."
            )
    fix = "number the classes from 0, or correct num_classes."
    return part.with_labels(check_labels(part.labels, dataset.num_classes, lambda row: f"{split}, row {row}", fix))
