"""Loading datasets: every format returns exactly the pixels and labels that were stored, or a clear error."""

import logging
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from picture_files import encoded, pixels, write_class_folders, write_parquet
from PIL import Image

from looksam.trainer.data import BadImageError, Encoded, Images, load_dataset
from looksam.trainer.data.reading.dataset import require
from looksam.trainer.data.reading.decode import decode

REAL = Path(os.environ.get("LOOKSAM_DATA") or Path(__file__).parents[4] / "shared/data")


def parquet_folder(folder: Path, images: np.ndarray, labels: list[int]) -> Path:
    data = [encoded(image) for image in images]
    write_parquet(folder / "train-0.parquet", data, labels)
    write_parquet(folder / "test-0.parquet", data[:2], labels[:2])
    return folder


# --- decoding


def test_every_mode_becomes_rgb() -> None:
    rgb = pixels(1)[0]
    grey = rgb[..., 0]
    alpha = np.full((4, 4, 1), 7, np.uint8)
    np.testing.assert_array_equal(decode(encoded(rgb), "here"), rgb)
    np.testing.assert_array_equal(decode(encoded(grey), "here"), np.stack([grey] * 3, -1))
    np.testing.assert_array_equal(decode(encoded(np.concatenate([rgb, alpha], -1)), "here"), rgb)
    np.testing.assert_array_equal(decode(encoded(grey.astype(np.uint16) * 256 + 9), "here"), np.stack([grey] * 3, -1))
    palette = Image.fromarray(rgb).quantize(16)
    palette.info["transparency"] = bytes(range(16))
    np.testing.assert_array_equal(decode(encoded(palette), "here"), np.asarray(palette.convert("RGBA"))[..., :3])
    cmyk = Image.new("CMYK", (4, 4), (0, 255, 255, 0))  # pure red
    assert np.abs(decode(encoded(cmyk, "JPEG"), "here").astype(int) - [255, 0, 0]).max() <= 2


def test_formats_that_run_programs_are_refused() -> None:
    with pytest.raises(BadImageError, match=r"here: unreadable image \(none of JPEG"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n", "here")


# --- Parquet folders


def test_parquet_gives_exact_pixels(tmp_path: Path) -> None:
    images = pixels(5)
    data = [encoded(image) for image in images]
    write_parquet(tmp_path / "train-00000-of-00002.parquet", data[:3], [0, 1, 2])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", data[3:], [3, 0])
    write_parquet(tmp_path / "validation-0.parquet", data[:1], [3])
    got = load_dataset("parquet", data_dir=tmp_path)
    assert isinstance(got.train, Images) and got.num_classes == 4
    np.testing.assert_array_equal(got.train.images, images)
    np.testing.assert_array_equal(got.train.labels, [0, 1, 2, 3, 0])
    np.testing.assert_array_equal(got.test.labels, [3])


def test_parquet_of_mixed_or_too_many_pixels_stays_encoded(tmp_path: Path) -> None:
    data = [encoded(pixels(1, size)[0]) for size in (4, 4, 4, 5)]
    write_parquet(tmp_path / "train-0.parquet", data[:3], [0, 1, 2])
    write_parquet(tmp_path / "test-0.parquet", data[:1], [0])
    assert isinstance(load_dataset("parquet", data_dir=tmp_path, max_decoded_bytes=4 * 48).train, Images)
    assert isinstance(load_dataset("parquet", data_dir=tmp_path, max_decoded_bytes=4 * 48 - 1).train, Encoded)
    write_parquet(tmp_path / "test-0.parquet", data[3:], [0])
    mixed = load_dataset("parquet", data_dir=tmp_path, image_size=6)
    assert mixed.image_shape == (6, 6, 3)
    assert isinstance(mixed.train, Encoded) and isinstance(mixed.test, Encoded)
    assert mixed.train.read(2) == data[2] and mixed.train.place(2).endswith("train-0.parquet row 2")


def test_parquet_columns_are_found_by_type_or_named(tmp_path: Path) -> None:
    data = [encoded(image) for image in pixels(2)]
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", data, [0, 1], coarse=[1, 1], score=[0.5, 1.5])
    np.testing.assert_array_equal(load_dataset("parquet", data_dir=tmp_path).train.labels, [0, 1])
    named = load_dataset("parquet", data_dir=tmp_path, label_column="coarse", num_classes=2)
    np.testing.assert_array_equal(named.train.labels, [1, 1])
    with pytest.raises(TypeError, match=r"train-0.parquet: label column 'score' is double.*0\.5 in row 0"):
        load_dataset("parquet", data_dir=tmp_path, label_column="score")
    with pytest.raises(ValueError, match="no column 'lable'; it has img, label, coarse, score"):
        load_dataset("parquet", data_dir=tmp_path, label_column="lable")
    with pytest.raises(ValueError, match="column 'coarse' is int64, not a struct"):
        load_dataset("parquet", data_dir=tmp_path, image_column="coarse")


def test_parquet_with_several_or_no_candidates_lists_them(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "b": [2], "text": ["x"]})
    for split in ("train", "test"):
        pq.write_table(table, tmp_path / f"{split}-0.parquet")
    with pytest.raises(ValueError, match=r"no encoded-image column \(columns: a: int64, b: int64, text: string\)"):
        load_dataset("parquet", data_dir=tmp_path)
    struct = pa.array([{"bytes": b"", "path": ""}], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    for split in ("train", "test"):
        pq.write_table(table.append_column("img", struct), tmp_path / f"{split}-0.parquet")
    with pytest.raises(ValueError, match=r"several integer label columns: a, b; choose one with --label-column"):
        load_dataset("parquet", data_dir=tmp_path)


def test_parquet_labels_outside_the_classes_name_file_row_and_value(tmp_path: Path) -> None:
    data = [encoded(image) for image in pixels(3)]
    write_parquet(tmp_path / "train-0.parquet", data, [0, 1, 1])
    write_parquet(tmp_path / "test-0.parquet", data, [0, 1, 2])
    with pytest.raises(ValueError, match=r"test-0\.parquet row 2: label 2 is outside 0\.\.1 \(1 such rows\)"):
        load_dataset("parquet", data_dir=tmp_path)
    assert load_dataset("parquet", data_dir=tmp_path, num_classes=5).num_classes == 5
    write_parquet(tmp_path / "train-0.parquet", data, [0, -1, 1], names=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"train-0\.parquet row 1: label -1 is outside 0\.\.2"):
        load_dataset("parquet", data_dir=tmp_path)
    write_parquet(tmp_path / "train-0.parquet", data, [0, 1, 1], names=["a", "b", "c"])
    assert load_dataset("parquet", data_dir=tmp_path).num_classes == 3  # by the names, not by the largest label
    write_parquet(tmp_path / "test-0.parquet", data, [0, None, 2])
    with pytest.raises(ValueError, match=r"test-0\.parquet row 1: label 'label' is missing"):
        load_dataset("parquet", data_dir=tmp_path)


def test_parquet_files_missing_or_broken(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no train\.parquet or train-\*\.parquet \(.* there: none\)"):
        load_dataset("parquet", data_dir=tmp_path)
    data = [encoded(pixels(1)[0])]
    write_parquet(tmp_path / "train-0.parquet", data, [0])
    with pytest.raises(FileNotFoundError, match=r"no test\.parquet .* or val-\*.*train-0.parquet\).*--test-split"):
        load_dataset("parquet", data_dir=tmp_path)
    write_parquet(tmp_path / "test-0.parquet", [], pa.array([], pa.int64()))
    with pytest.raises(ValueError, match=r"test-0\.parquet and the files after it hold no rows"):
        load_dataset("parquet", data_dir=tmp_path)
    (tmp_path / "train-0.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"train-0\.parquet is not a readable Parquet file"):
        load_dataset("parquet", data_dir=tmp_path)


@pytest.mark.parametrize("bad", [encoded(pixels(1, 40)[0])[:60], b"no image", b"", None])
def test_unreadable_image_fails_with_its_place_or_is_skipped(tmp_path: Path, caplog, bad: bytes | None) -> None:
    images = pixels(4, 40)
    data: list[bytes | None] = [encoded(image) for image in images]
    data[2] = bad
    write_parquet(tmp_path / "train-0.parquet", data, [0, 1, 2, 3])
    write_parquet(tmp_path / "test-0.parquet", [encoded(images[0])], [0])
    with pytest.raises(BadImageError, match=r"train-0\.parquet row 2: .*"):
        load_dataset("parquet", data_dir=tmp_path)
    with caplog.at_level(logging.WARNING, "looksam.trainer.data"):
        got = load_dataset("parquet", data_dir=tmp_path, on_bad_image="skip")
    np.testing.assert_array_equal(got.train.images, images[[0, 1, 3]])
    np.testing.assert_array_equal(got.train.labels, [0, 1, 3])
    assert "1 of 4 images are unreadable" in caplog.text and "train-0.parquet row 2" in caplog.text


def test_a_set_of_unreadable_images_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", [b"x", b"y"], [0, 1])
    write_parquet(tmp_path / "test-0.parquet", [b"x"], [0])
    with pytest.raises(BadImageError, match="no readable image"):
        load_dataset("parquet", data_dir=tmp_path, on_bad_image="skip")


# --- image folders


def test_folder_numbers_sorted_classes(tmp_path: Path) -> None:
    images = pixels(4)
    write_class_folders(tmp_path, images, "train")
    write_class_folders(tmp_path, images[:2], "val")
    (tmp_path / "train" / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".cache").mkdir()
    got = load_dataset("folder", data_dir=tmp_path)
    np.testing.assert_array_equal(got.train.images, images[[1, 3, 0, 2]])  # a: 1, 3; b: 0, 2
    np.testing.assert_array_equal(got.train.labels, [0, 0, 1, 1])
    np.testing.assert_array_equal(got.test.labels, [0, 1])
    assert got.num_classes == 2


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no train/"):
        load_dataset("folder", data_dir=tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="no test/ or validation/ or val/"):
        load_dataset("folder", data_dir=tmp_path)
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match="train has no class directories"):
        load_dataset("folder", data_dir=tmp_path)
    write_class_folders(tmp_path, pixels(2), "train")
    write_class_folders(tmp_path, pixels(1), "test")
    with pytest.raises(ValueError, match=r"differ in their classes .*'a'"):
        load_dataset("folder", data_dir=tmp_path)
    (tmp_path / "test" / "a").mkdir()
    with pytest.raises(ValueError, match=r"class directory .*test/a has no images"):
        load_dataset("folder", data_dir=tmp_path)
    (tmp_path / "test" / "a" / "1.png").write_bytes(encoded(pixels(1)[0])[:50])
    with pytest.raises(BadImageError, match=r"test/a/1\.png: unreadable"):
        load_dataset("folder", data_dir=tmp_path)


def test_folder_with_another_class_count_than_asked_for(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_class_folders(tmp_path, pixels(2), split)
    with pytest.raises(ValueError, match="images of 2 classes, and 3 are expected"):
        load_dataset("folder", data_dir=tmp_path, num_classes=3)


def test_splits_are_chosen_in_order_or_by_name(tmp_path: Path) -> None:
    for label, split in enumerate(("train", "validation", "test")):
        write_parquet(tmp_path / f"{split}-0.parquet", [encoded(pixels(1)[0])], [label])
    assert load_dataset("parquet", data_dir=tmp_path, num_classes=3).test.labels == [2]
    assert load_dataset("parquet", data_dir=tmp_path, num_classes=3, test_split="validation").test.labels == [1]


# --- names and places


def test_names_and_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOKSAM_DATA", raising=False)
    with pytest.raises(ValueError, match="'cifar10' is unknown; did you mean cifar100"):
        load_dataset("cifar10")
    with pytest.raises(FileNotFoundError, match="LOOKSAM_DATA"):
        load_dataset("cifar100")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_dataset("parquet", data_dir=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="on_bad_image='ignore'"):
        load_dataset("digits", on_bad_image="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'imagenet' has no download"):
        load_dataset("imagenet", download=True)
    (tmp_path / "cifar100").mkdir()
    parquet_folder(tmp_path / "cifar100", pixels(3), [0, 1, 99])
    monkeypatch.setenv("LOOKSAM_DATA", str(tmp_path))
    assert load_dataset("cifar100").num_classes == 100
    assert len(load_dataset("parquet", data_dir="cifar100", num_classes=100).train) == 3  # relative to LOOKSAM_DATA
    with pytest.raises(ValueError, match="images of 3 classes, and 1000 are expected of 'imagenet'"):
        load_dataset("imagenet", data_dir=tmp_path / "cifar100")


def test_missing_package_names_the_extra() -> None:
    with pytest.raises(ImportError, match=r"no_such_package.*pip install 'looksam\[train\]'"):
        require("no_such_package")


@pytest.mark.skipif(not (REAL / "cifar100").is_dir(), reason=f"no CIFAR-100 in {REAL}; set LOOKSAM_DATA")
def test_real_cifar100() -> None:
    data = load_dataset("cifar100", data_dir=REAL)
    assert data.train.images.shape == (50_000, 32, 32, 3) and data.test.images.shape == (10_000, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(data.train.labels), np.full(100, 500))
    np.testing.assert_array_equal(np.bincount(data.test.labels), np.full(100, 100))
    np.testing.assert_array_equal(np.round(data.mean, 4), [0.5071, 0.4865, 0.4409])
    np.testing.assert_array_equal(np.round(data.std, 4), [0.2673, 0.2564, 0.2762])
