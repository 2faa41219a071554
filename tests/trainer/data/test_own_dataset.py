"""Datasets of the user's own: a function's arrays train as they are, or are refused with the part that does not fit."""

import dataclasses

import numpy as np
import pytest

from looksam.trainer.data import Dataset, Images, load_dataset
from looksam.trainer.own_code import OwnCodeError

RNG = np.random.default_rng(0)
PIXELS, LABELS = RNG.integers(0, 256, (6, 4, 5, 3), np.uint8), np.arange(6) % 2
WHOLE = Images(PIXELS, LABELS)


def load(request):
    assert request.data_dir == "somewhere"
    return RESULT(request) if callable(RESULT) else RESULT


RESULT = None


def loaded(monkeypatch, result):
    monkeypatch.setitem(globals(), "RESULT", result)
    return load_dataset(f"{__file__}:load", data_dir="somewhere")


def test_arrays_are_a_dataset(monkeypatch):
    dataset = loaded(monkeypatch, lambda request: Dataset.from_images("mine", WHOLE, WHOLE, 2))
    assert (dataset.image_shape, dataset.num_classes, len(dataset.mean)) == ((4, 5, 3), 2, 3)
    assert dataset.train.images is PIXELS
    assert dataset.train.labels.dtype == dataset.test.labels.dtype == np.int32
    np.testing.assert_array_equal(dataset.train.labels, LABELS)


def whole(**changes):
    return dataclasses.replace(Dataset.from_images("mine", WHOLE, WHOLE, 2), **changes)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda request: (PIXELS, LABELS), "returns a tuple; define it as def load"),
        (lambda request: whole(num_classes=1, class_names=("a",)), "num_classes=1; a classifier needs at least 2"),
        (lambda request: whole(mean=(0.5,)), "has 1 means and 3 stds for 3 channels"),
        (lambda request: whole(test=LABELS), "test is a ndarray; pass Images or Encoded"),
        (
            lambda request: whole(image_shape=(8, 8, 3)),
            r"train: images are \(4, 5, 3\), and image_shape is \(8, 8, 3\)",
        ),
        (lambda request: whole(test=Images(PIXELS, LABELS + 1)), "test, row 1: label 2 is outside 0..1"),
        (lambda request: whole(test=Images(PIXELS, LABELS / 1)), "labels are float64, not integers"),
        (lambda request: whole(test=Images(PIXELS, LABELS[:3])), r"labels have shape \(3,\) for 6 images"),
        (
            lambda r: Dataset.from_images("m", Images(PIXELS / 255, LABELS), WHOLE, 2),
            "train: images are float64; pass u",
        ),
        (
            lambda r: Dataset.from_images("m", WHOLE, Images(PIXELS[0], LABELS), 2),
            r"test: images have shape \(4, 5, 3\)",
        ),
        (lambda r: Dataset.from_images("m", Images(PIXELS, [0, 1]), WHOLE, 2), "are ndarray and list; convert both"),
        (lambda request: {}["x"], r"test_own_dataset.py, line \d+: KeyError: 'x'"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(monkeypatch, result, message):
    with pytest.raises(OwnCodeError, match=message):
        loaded(monkeypatch, result)


def test_missing_data_is_no_error_of_the_function(monkeypatch):
    with pytest.raises(FileNotFoundError, match="--data-dir .*somewhere is not a folder"):
        loaded(monkeypatch, lambda request: request.folder())


def test_a_function_with_other_arguments_is_refused():
    with pytest.raises(OwnCodeError, match="cannot be called .*define it as def load"):
        load_dataset(f"{__file__}:loaded")
