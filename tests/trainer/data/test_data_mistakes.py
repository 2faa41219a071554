"""Mistakes in a dataset are errors that name the file, the value and the fix; nothing is decided in silence."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from picture_files import encoded, pixels, write_class_folders, write_parquet
from PIL import Image

from looksam.trainer.data import DataError, Encoded, Images, load_dataset
from looksam.trainer.data.reading.image_folder import FileRows
from looksam.trainer.data.reading.parquet import ParquetRows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Writes twelve training and four test pictures of 8×8 pixels."""
    write_class_folders(tmp_path, pixels(12, 8), "train")
    write_class_folders(tmp_path, pixels(4, 8), "test")
    return tmp_path


def replace_image(path: Path, width: int, height: int) -> None:
    path.write_bytes(encoded(Image.new("RGB", (width, height))))


# --- sizes


@pytest.mark.parametrize("odd", ["train/a/1.png", "train/a/5.png", "test/b/0.PNG"])
def test_one_image_of_another_size_is_named(folder: Path, odd: str) -> None:
    replace_image(folder / odd, 9, 7)
    with pytest.raises(DataError, match=rf"{odd} has 9×7 pixels, and all other images have 8×8; .*--image-size 8"):
        load_dataset("folder", data_dir=folder)
    cropped = load_dataset("folder", data_dir=folder, image_size=8)
    assert isinstance(cropped.train, Encoded) and cropped.image_shape == (8, 8, 3)
    [note] = cropped.notes
    assert "12 training images of several sizes" in note and "random crops to 8×8" in note


def test_a_test_set_of_another_size_than_the_training_set_is_an_error(folder: Path) -> None:
    for path in (folder / "test").rglob("*.*"):
        replace_image(path, 6, 6)
    with pytest.raises(DataError, match=r"test/a/1\.png has 6×6 pixels, and 4 images, .* differ from the usual 8×8"):
        load_dataset("folder", data_dir=folder)


def test_images_of_many_sizes_are_streamed_and_reported(folder: Path) -> None:
    for i, path in enumerate(sorted((folder / "train").rglob("*.*"))):
        replace_image(path, 10 + i, 12)
    dataset = load_dataset("folder", data_dir=folder)
    assert isinstance(dataset.train, Encoded) and dataset.image_shape == (224, 224, 3)
    [note] = dataset.notes
    assert "several sizes (such as 10×12 and 11×12)" in note and "crops to 224×224" in note and "--image-size" in note


def test_a_set_too_large_for_memory_keeps_the_size_of_small_squares(folder: Path) -> None:
    dataset = load_dataset("folder", data_dir=folder, max_decoded_bytes=100)
    assert isinstance(dataset.train, Encoded) and dataset.image_shape == (8, 8, 3)
    assert "12 training images of 8×8 are decoded as they are read" in dataset.notes[0]
    in_memory = load_dataset("folder", data_dir=folder, image_size=16)
    assert isinstance(in_memory.train, Images) and in_memory.image_shape == (8, 8, 3) and in_memory.notes == ()


# --- labels and shards


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 2**40, 1], rf"row 1: label {2**40} would make .* classes, but no image has label 2 .*without gaps\.$"),
        ([0, 1000, 2000], r"row 2: label 2000 would make 2,001 classes.* label 1 .*3 different.*--num-classes 2001"),
        ([1, 2, 3], "row 2: label 3 would make 4 classes, but no image has label 0 .*number the classes from 0"),
        ([0, -1, 1], r"row 1: label -1 is outside 0\.\.1 .*--num-classes"),
    ],
)
def test_labels_that_are_no_class_numbers(tmp_path: Path, labels: list[int], message: str) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", [encoded(image) for image in pixels(3)], labels)
    with pytest.raises(ValueError, match=rf"train-0\.parquet {message}"):
        load_dataset("parquet", data_dir=tmp_path)
    with pytest.raises(ValueError, match="num_classes=1099511627777 is out of range"):
        load_dataset("parquet", data_dir=tmp_path, num_classes=2**40 + 1)


def test_missing_and_mixed_shards(tmp_path: Path) -> None:
    data = [encoded(image) for image in pixels(2)]
    write_parquet(tmp_path / "train-00000-of-00003.parquet", data, [0, 1])
    write_parquet(tmp_path / "test-00000-of-00001-8f1c.parquet", data, [0, 1])
    with pytest.raises(DataError, match=r"has 1 of the 3 shards that train-00000-of-00003.*lacks number 00001, 00002"):
        load_dataset("parquet", data_dir=tmp_path)
    for number in (1, 2):
        shutil.copy(tmp_path / "train-00000-of-00003.parquet", tmp_path / f"train-0000{number}-of-00003.parquet")
    assert len(load_dataset("parquet", data_dir=tmp_path).train) == 6
    shutil.copy(tmp_path / "train-00000-of-00003.parquet", tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(DataError, match=r"several versions, train-00000-of-00001.*keep those of one"):
        load_dataset("parquet", data_dir=tmp_path)


@pytest.mark.parametrize("layout", ["{}.parquet", "data/{}-0.parquet", "{}/0000.parquet", "data/{}.parquet"])
def test_parquet_files_are_found_in_every_usual_layout(tmp_path: Path, layout: str) -> None:
    data = [encoded(image) for image in pixels(2)]
    for split in ("train", "validation", "test"):
        write_parquet(tmp_path / layout.format(split), data, [0, 1], names=["cat", "dog"])
    dataset = load_dataset("parquet", data_dir=tmp_path)
    assert list(dataset.splits()) == ["train", "validation", "test"] and dataset.class_names == ("cat", "dog")


# --- files


def test_the_other_format_is_recognised(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(FileNotFoundError, match=r"no train\.parquet .*pass --dataset folder"):
        load_dataset("parquet", data_dir=folder)
    other = tmp_path_factory.mktemp("parquet")
    write_parquet(other / "data" / "training.parquet", [encoded(pixels(1)[0])], [0])
    with pytest.raises(FileNotFoundError, match=r"has no train/ \(there: data\); pass --dataset parquet"):
        load_dataset("folder", data_dir=other)
    with pytest.raises(FileNotFoundError, match=r"there: data/training\.parquet\); name those of the split train-"):
        load_dataset("parquet", data_dir=other)
    parent = tmp_path_factory.mktemp("parent")
    shutil.copytree(folder, parent / "set")
    with pytest.raises(FileNotFoundError, match=rf"has no train/ \(there: set\); pass --data-dir {parent / 'set'}"):
        load_dataset("folder", data_dir=parent)
    write_parquet(other / "deep" / "er" / "train.parquet", [encoded(pixels(1)[0])], [0])
    with pytest.raises(FileNotFoundError, match=r"deep/er/train\.parquet\); pass --data-dir .*/deep/er"):
        load_dataset("parquet", data_dir=other)
    (folder / "train").rename(folder / "cats")
    with pytest.raises(FileNotFoundError, match=r"has no train/ \(there: cats, test\); put the images into train/<"):
        load_dataset("folder", data_dir=folder)


def test_links_to_nothing_are_named(folder: Path) -> None:
    link = folder / "train" / "a" / "link.png"
    link.symlink_to("/nowhere/1.png")
    with pytest.raises(DataError, match=r"train/a/link\.png is a link to /nowhere/1\.png, which does not exist"):
        load_dataset("folder", data_dir=folder)
    link.unlink()
    (folder / "train" / "c").symlink_to("/nowhere")
    with pytest.raises(DataError, match=r"train/c is a link to /nowhere, which"):
        load_dataset("folder", data_dir=folder)
    write_parquet(folder / "test.parquet", [encoded(pixels(1)[0])], [0])
    (folder / "train.parquet").symlink_to("/nowhere.parquet")
    with pytest.raises(DataError, match=r"train\.parquet is a link to /nowhere\.parquet, which"):
        load_dataset("parquet", data_dir=folder)


def test_files_that_are_no_images_are_reported_and_hidden_ones_are_not(folder: Path) -> None:
    (folder / "train" / "a" / "._1.png").write_bytes(b"")
    (folder / "train" / "a" / "1.heic").write_bytes(b"")
    (folder / "test" / "stray.png").write_bytes(b"")
    dataset = load_dataset("folder", data_dir=folder)
    assert len(dataset.train) == 12
    [note] = dataset.notes
    assert note.startswith(f"ignored {folder / 'train' / 'a' / '1.heic'} and 1 more: not an image")
    for path in (folder / "train" / "a").glob("*.png"):
        path.unlink()
    with pytest.raises(ValueError, match=r"train/a has no images \(.*; there: 1\.heic\); fill or delete it"):
        load_dataset("folder", data_dir=folder)


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_files_that_are_gone_or_forbidden_are_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "1.file"
    write_parquet(path, [encoded(pixels(1)[0])], [0])
    rows = FileRows([path]) if kind == "folder" else ParquetRows([path], "img")
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read .*/1\.file: No such file or directory; bring it back") as failure:
        rows.read(0)
    assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value)  # as a worker process sends it


# --- splits and fingerprints


@pytest.mark.parametrize("name", ["val", "validation"])
def test_validation_and_test_are_both_read(folder: Path, name: str) -> None:
    write_class_folders(folder, pixels(6, 8), name)
    dataset = load_dataset("folder", data_dir=folder)
    assert {name: len(split) for name, split in dataset.splits().items()} == {"train": 12, "validation": 6, "test": 4}
    chosen = load_dataset("folder", data_dir=folder, test_split=name)
    assert len(chosen.test) == 6 and chosen.validation is None
    shutil.rmtree(folder / "test")
    alone = load_dataset("folder", data_dir=folder)
    assert len(alone.test) == 6 and alone.validation is None
    (folder / name / "a").rename(folder / name / "c")
    with pytest.raises(ValueError, match=rf"train and .*/{name} differ in their classes \(2 in one only, e\.g\. 'a'\)"):
        load_dataset("folder", data_dir=folder)


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_a_fingerprint_is_of_the_files_and_not_of_their_place(folder: Path, kind: str) -> None:
    if kind == "parquet":
        for split, labels in (("train", [0, 1, 1]), ("test", [0, 1, 0])):
            write_parquet(folder / f"{split}.parquet", [encoded(image) for image in pixels(3)], labels)
    before = load_dataset(kind, data_dir=folder).fingerprints
    assert before.keys() == {"train", "test"}
    moved = folder.rename(folder.with_name(f"{folder.name}-moved"))
    assert load_dataset(kind, data_dir=moved).fingerprints == before
    if kind == "folder":  # the images of two classes swapped: the same labels, in the same order
        for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
            os.rename(moved / "train" / old, moved / "train" / new)
    else:
        write_parquet(moved / "train.parquet", [encoded(image) for image in pixels(3, 5)], [0, 1, 1])
        write_parquet(moved / "test.parquet", [encoded(image) for image in pixels(3, 5)], [0, 1, 0])
    after = load_dataset(kind, data_dir=moved)
    assert after.fingerprints["train"] != before["train"]
    np.testing.assert_array_equal(np.bincount(after.train.labels), [6, 6] if kind == "folder" else [1, 2])
