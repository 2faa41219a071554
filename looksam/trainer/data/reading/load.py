"""Loads a dataset by name: ``load_dataset(name)`` looks the name up in ``reading.DATASETS``.

To add a dataset in a known format, write a loader here and enter it in ``DATASETS``. To add a format, first write a
module next to ``parquet`` and ``image_folder`` that returns ``Encoded`` sets, or ``Images`` if it is always small. A
dataset of your own needs no change here: ``own_dataset`` calls what ``file.py:function`` or an entry point names.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from looksam.trainer import own_code
from looksam.trainer.data.reading import DATASETS, cifar_archive, data_folder
from looksam.trainer.data.reading.dataset import ON_BAD_IMAGE, Dataset, Images, OnBadImage, Splits, require
from looksam.trainer.data.reading.decode import MAX_DECODED_BYTES
from looksam.trainer.data.reading.image_folder import has_class_folders, read_class_folders
from looksam.trainer.data.reading.image_sizes import Streamed, decoded_or_streamed
from looksam.trainer.data.reading.labels import hold_out
from looksam.trainer.data.reading.own_dataset import own_dataset
from looksam.trainer.data.reading.parquet import has_parquet, read_parquet

TEST_SPLITS = ("test", "validation", "val")  # the first that exists is the test set
VALIDATION_SPLITS = ("validation", "val")  # the first that exists, next to a test set, is the validation set
IMAGENET_TEST_SPLITS = ("validation", "val", "test")  # the labels of ImageNet's test images are not public
IMAGENET_CLASSES = 1000
IMAGENET_MEAN = (0.485, 0.456, 0.406)  # the usual constants, for sets that are too large to measure
IMAGENET_STD = (0.229, 0.224, 0.225)

DIGITS_TEST_COUNT = 1197  # leaves 600 to train on, few enough that methods differ in generalisation
DIGITS_SPLIT_SEED = 0  # one fixed split, stratified by class, for every seed of a run
DIGITS_SCALE = 15  # pixels are 0..16; times 15 they are 0..240, and // 15 restores them


def load_dataset(
    name: str,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
    on_bad_image: OnBadImage = "fail",
    image_column: str | None = None,
    label_column: str | None = None,
    num_classes: int | None = None,
    test_split: str | None = None,
    image_size: int | None = None,
    max_decoded_bytes: int = MAX_DECODED_BYTES,
) -> Dataset:
    """Loads a dataset by name.

    Args:
      name: ``digits`` (built in), ``cifar100`` (the binary archive or Parquet files), ``imagenet`` (Parquet files or
        class folders), any other dataset as ``parquet`` or ``folder``, an entry point of ``looksam.datasets``,
        ``file.py:function`` or ``package.module:function``.
      data_dir: the folder with the files, or its parent if the folder is named after the dataset. By default the
        environment variable LOOKSAM_DATA.
      download: fetch CIFAR-100 if it is missing. Nothing is ever downloaded otherwise.
      on_bad_image: 'fail' stops at an unreadable image, 'skip' leaves it out.
      image_column: needed for Parquet files with several columns of encoded images.
      label_column: needed for Parquet files with several integer columns.
      num_classes: by default as in the metadata or the labels of Parquet files, or the number of class folders.
      test_split: the split to test on if there are several, e.g. 'validation'.
      image_size: the side to which images of several sizes, and of sets that do not fit in memory, are cropped; see
        ``image_sizes``. Sets of one size that fit in memory keep theirs.
      max_decoded_bytes: sets of one image size up to this are decoded into memory; 0 streams every set.
    """
    name = own_code.as_name("dataset", name, DATASETS)
    if on_bad_image not in ON_BAD_IMAGE:
        raise ValueError(f"on_bad_image={on_bad_image!r} is unknown; pass 'fail' or 'skip'.")
    if download and name != "cifar100":
        raise ValueError(f"--download: {name!r} has no download; only cifar100 has one.")
    request = Request(
        name=name,
        data_dir=data_dir,
        download=download,
        on_bad_image=on_bad_image,
        image_column=image_column,
        label_column=label_column,
        num_classes=num_classes,
        test_split=test_split,
        image_size=image_size,
        max_decoded_bytes=max_decoded_bytes,
    )
    if name not in DATASETS:
        return own_dataset(name, request)
    loader: Callable[[Request], Dataset] = globals()[DATASETS[name]]
    return loader(request)


@dataclass(frozen=True)
class Request:
    """The arguments of ``load_dataset``, as they are passed to a loader."""

    name: str
    data_dir: str | Path | None
    download: bool
    on_bad_image: OnBadImage
    image_column: str | None
    label_column: str | None
    num_classes: int | None
    test_split: str | None
    image_size: int | None
    max_decoded_bytes: int

    def folder(self) -> Path:
        """Returns the folder with the dataset's files, which exists unless it is to be downloaded."""
        folder = data_folder(self.data_dir)
        if folder is None:
            raise FileNotFoundError(
                f"dataset {self.name!r} needs files; pass their folder as --data-dir, or set LOOKSAM_DATA to it."
            )
        if self.name in ("cifar100", "imagenet") and (folder / self.name).is_dir():
            return folder / self.name
        if not folder.is_dir() and not self.download:
            raise FileNotFoundError(f"--data-dir {folder} is not a folder; pass the folder that holds {self.name!r}.")
        return folder

    def test_splits(self) -> tuple[str, ...]:
        """Returns the names of the test split, in order of preference."""
        if self.test_split:
            return (self.test_split,)
        return IMAGENET_TEST_SPLITS if self.name == "imagenet" else TEST_SPLITS

    def validation_splits(self) -> tuple[str, ...]:
        """Returns the names of the validation split, in order of preference; none if one of them is the test split."""
        tests_on_validation = self.name == "imagenet" or self.test_split in VALIDATION_SPLITS
        return () if tests_on_validation else VALIDATION_SPLITS

    def parquet(self, folder: Path, num_classes: int | None) -> Splits:
        """Returns the splits of a folder of Parquet files."""
        return read_parquet(
            folder,
            on_bad_image=self.on_bad_image,
            image_column=self.image_column,
            label_column=self.label_column,
            num_classes=num_classes,
            test_splits=self.test_splits(),
            validation_splits=self.validation_splits(),
        )

    def class_folders(self, folder: Path) -> Splits:
        """Returns the splits of a folder with a directory per class."""
        return read_class_folders(
            folder,
            on_bad_image=self.on_bad_image,
            test_splits=self.test_splits(),
            validation_splits=self.validation_splits(),
        )

    def check_classes(self, folder: Path, count: int, expected: int) -> None:
        """Raises unless the training images have the expected number of classes."""
        if count != expected:
            raise ValueError(
                f"{folder} has training images of {count} classes, and {expected} are expected of {self.name!r}; "
                "correct --num-classes, or load a dataset other than ImageNet-1k with --dataset parquet or folder."
            )

    def dataset(self, splits: Splits) -> Dataset:
        """Returns the dataset, decoded into memory if it is small, and to be streamed otherwise."""
        about: dict[str, Any] = {
            "name": self.name,
            "num_classes": len(splits.class_names),
            "class_names": splits.class_names,
            "fingerprints": {name: split.rows.fingerprint() for name, split in splits.named().items()},
        }
        images = decoded_or_streamed(splits, self.max_decoded_bytes, self.image_size)
        if not isinstance(images, Streamed):
            return Dataset.from_images(**(about | images), notes=splits.notes)
        return Dataset(
            **(about | splits.named()),
            image_shape=(images.side, images.side, 3),
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            notes=(*splits.notes, images.note),
        )


def load_digits(request: Request) -> Dataset:
    """Loads the handwritten digits that ship with scikit-learn: 600 training and 1,197 test images, (8, 8, 1)."""
    table = _read_digits()
    pixels, labels = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1]
    images = Images((pixels * DIGITS_SCALE).astype(np.uint8), labels.astype(np.int32))
    train, test = hold_out(images, DIGITS_TEST_COUNT, DIGITS_SPLIT_SEED)
    # Inputs are pixels in [0, 1], not standardised: models of this size train as well, and numbers stay comparable.
    return Dataset(request.name, train, test, 10, (8, 8, 1), mean=(0.0,), std=(16 * DIGITS_SCALE / 255,))


def _read_digits() -> np.ndarray:
    """Returns scikit-learn's table of digits, (1797, 65), without importing scikit-learn, which takes a second."""
    package = importlib.util.find_spec("sklearn") or require("sklearn").__spec__  # raises, and names the extra
    return np.loadtxt(Path(str(package.origin)).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.int64)


def load_cifar100(request: Request) -> Dataset:
    """Loads CIFAR-100 from the binary archive, which can be downloaded, or from Parquet files."""
    folder = request.folder()
    if cifar_archive.has_archive(folder):
        return cifar_archive.load_cifar100_archive(folder)
    if has_parquet(folder):
        return request.dataset(request.parquet(folder, cifar_archive.CLASSES))
    if not request.download:
        raise cifar_archive.not_found(folder)
    cifar_archive.download_cifar100(folder)
    return cifar_archive.load_cifar100_archive(folder)


def load_imagenet(request: Request) -> Dataset:
    """Loads ImageNet-1k from Parquet files or class folders."""
    folder = request.folder()
    if has_parquet(folder):
        splits = request.parquet(folder, IMAGENET_CLASSES)
        count = len(np.unique(splits.train.labels))
    elif has_class_folders(folder):
        splits = request.class_folders(folder)
        count = len(splits.class_names)
    else:
        raise FileNotFoundError(f"{folder} has neither train-*.parquet nor train/<class>/; put {request.name} there.")
    request.check_classes(folder, count, IMAGENET_CLASSES)
    return request.dataset(splits)


def load_parquet(request: Request) -> Dataset:
    """Loads any dataset from a folder of Parquet files."""
    return request.dataset(request.parquet(request.folder(), request.num_classes))


def load_folder(request: Request) -> Dataset:
    """Loads any dataset from a folder with a directory per class."""
    folder = request.folder()
    splits = request.class_folders(folder)
    count = len(splits.class_names)
    request.check_classes(folder, count, request.num_classes or count)
    return request.dataset(splits)
