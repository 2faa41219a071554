"""The summary of a run's data: written and read back, and every difference from other data is named."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from looksam.trainer.data import Dataset, Images
from looksam.trainer.run_folder.dataset_summary import DatasetSummary
from looksam.trainer.run_folder.run_directory import RunError

RNG = np.random.default_rng(0)


def images(labels: list[int]) -> Images:
    return Images(RNG.integers(0, 256, (len(labels), 4, 4, 3), dtype=np.uint8), np.array(labels, np.int32))


@pytest.fixture
def dataset() -> Dataset:
    return Dataset.from_images(
        "folder",
        images([0, 0, 1, 2]),
        images([2, 1]),
        3,
        class_names=("cat", "dog", "owl"),
        validation=images([0]),
        fingerprints={"train": "a", "test": "b"},
    )


def test_summary_is_written_and_read_back(dataset: Dataset, tmp_path: Path) -> None:
    summary = DatasetSummary.of(dataset)
    summary.write(tmp_path)
    assert DatasetSummary.read(tmp_path) == summary
    summary.check_same(DatasetSummary.read(tmp_path), tmp_path)
    assert summary.class_names == ("cat", "dog", "owl") and summary.image_shape == (4, 4, 3)
    train = summary.splits["train"]
    assert (train.images, train.images_per_class, train.files) == (4, (2, 1, 1), "a")
    assert list(summary.splits) == ["train", "validation", "test"]


def test_classes_without_names_are_numbered_and_names_are_counted() -> None:
    assert Dataset.from_images("own", images([0, 1]), images([1]), 2).class_names == ("0", "1")
    with pytest.raises(ValueError, match="2 classes and 1 class_names; pass one name per class"):
        Dataset.from_images("own", images([0, 1]), images([1]), 2, class_names=("cat",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_names": ("cat", "fox", "owl")}, "class 1 is 'dog' there, 'fox' here"),
        ({"class_names": ("a", "b", "c", "d"), "num_classes": 4}, "3 classes there, 4 here"),
        ({"train": images([0, 0, 1, 1])}, "train images, 1 of class 'dog' there, 2 here, 1 of class 'owl'"),
        ({"train": images([2, 0, 1, 0])}, "the 4 train images have the same classes, but in another order"),
        ({"test": images([1, 2])}, "the 2 test images have the same classes, but in another order"),
        ({"validation": None}, r"splits \['train', 'validation', 'test'\] there, \['train', 'test'\] here"),
        ({"fingerprints": {"train": "c", "test": "b"}}, "the 4 train images have the same labels, but are other files"),
        ({"image_shape": (8, 8, 3)}, r"image shape \(4, 4, 3\) there, \(8, 8, 3\) here"),
        ({"mean": (0.1, 0.2, 0.3)}, r"the pixels differ, mean .* there, \[0\.1, 0\.2, 0\.3\] here"),
    ],
)
def test_other_data_is_refused_and_the_difference_named(dataset: Dataset, tmp_path: Path, change, message) -> None:
    DatasetSummary.of(dataset).write(tmp_path)
    other = DatasetSummary.of(dataclasses.replace(dataset, **change))
    with pytest.raises(RunError, match=f"holds a run on other data: {message}.*--data-dir"):
        other.check_same(DatasetSummary.read(tmp_path), tmp_path)


def test_pixels_may_differ_by_the_rounding_of_a_decoder(dataset: Dataset, tmp_path: Path) -> None:
    DatasetSummary.of(dataset).write(tmp_path)
    rounded = dataclasses.replace(dataset, mean=tuple(value + 1e-4 for value in dataset.mean))
    DatasetSummary.of(rounded).check_same(DatasetSummary.read(tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"has no data\.json"),
        ("{", r"data\.json is damaged: it is not JSON"),
        (json.dumps({"version": 2, "data": {}}), "format version 2, written by a newer looksam"),
        (json.dumps({"version": 1, "data": {"mean": 1}}), r"data\.json is damaged: .*'class_names'"),
    ],
)
def test_a_missing_or_damaged_summary_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "data.json").write_text(text)
    with pytest.raises(RunError, match=message):
        DatasetSummary.read(tmp_path)
