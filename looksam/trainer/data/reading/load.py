"""scikit-learn's handwritten digits: 1,797 real 8×8 images that ship inside the package. No download.

One door to all data sets: ``load_dataset(name)``.
"""

import difflib
import os
from pathlib import Path
from typing import Any

import numpy as np

from looksam.trainer.data.reading.cifar_archive import (
    ARCHIVE,
    CLASSES,
    PICKLED_ARCHIVE,
    URL,
    download_cifar100,
    load_cifar100_archive,
)
from looksam.trainer.data.reading.dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ON_BAD_IMAGE,
    Dataset,
    Encoded,
    Images,
    OnBadImage,
    channel_moments,
    require,
)
from looksam.trainer.data.reading.decode import MAX_DECODED_BYTES, in_memory
from looksam.trainer.data.reading.image_folder import has_folders, load_folder
from looksam.trainer.data.reading.labels import hold_out
from looksam.trainer.data.reading.parquet import has_parquet, load_parquet

TEST_COUNT = 1197  # leaves 600 to train on, few enough for generalisation to differ between methods
SPLIT_SEED = 0  # one fixed split, stratified by class, whatever the seed of the run
SCALE = 15  # pixels are 0..16; times 15 they are 0..240, and // 15 gives them back


def load_digits() -> Dataset:
    """600 training and 1,197 test images, (8, 8, 1), ten classes."""
    digits = require("sklearn.datasets").load_digits()
    pixels = (digits.images * SCALE).astype(np.uint8)[..., None]
    train, test = hold_out(Images(pixels, digits.target.astype(np.int32)), TEST_COUNT, SPLIT_SEED)
    # inputs are pixels in [0, 1], not standardised: at this size that trains as well, and the numbers stay comparable
    return Dataset("digits", train, test, 10, (8, 8, 1), mean=(0.0,), std=(16 * SCALE / 255,))


NAMES = ("cifar100", "digits", "folder", "imagenet", "parquet")
IMAGENET_CLASSES = 1000
TEST_SPLITS = ("test", "validation", "val")  # the first that is there
TEST_SPLITS_OF_IMAGENET = ("validation", "val", "test")  # the labels of its test images are not public
STREAMED_SIZE = 224  # streamed images are cropped; this is what Dataset.image_shape says of them


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
    max_decoded_bytes: int = MAX_DECODED_BYTES,
) -> Dataset:
    """A data set by name.

    Args:
      name: ``digits`` (built in), ``cifar100`` (the binary archive or Parquet files), ``imagenet`` (Parquet files or
        class folders), or any other set as ``parquet`` or ``folder``.
      data_dir: the folder with the files, or one that has them in a subfolder called like the data set. By default
        the environment variable LOOKSAM_DATA.
      download: fetch CIFAR-100 if it is not there. Nothing is ever downloaded without this.
      on_bad_image: 'fail' stops at an unreadable image, 'skip' goes on without it.
      image_column: of Parquet files with several encoded-image columns.
      label_column: of Parquet files with several integer columns.
      num_classes: of Parquet files; by default what they say themselves.
      test_split: which split to test on, where there are several, e.g. 'validation'.
      max_decoded_bytes: sets of one image size up to this are decoded into memory; 0 streams every set.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(str(name), NAMES, cutoff=0.4) or NAMES
        raise ValueError(f"data set {name!r} is unknown; did you mean {' or '.join(near)}?")
    if on_bad_image not in ON_BAD_IMAGE:
        raise ValueError(f"on_bad_image={on_bad_image!r} is unknown; pass 'fail' or 'skip'.")
    if download and name != "cifar100":
        raise ValueError(f"download=True, and {name!r} has no download; only cifar100 has one.")
    if name == "digits":
        return load_digits()
    folder = _folder(name, data_dir, download)
    if name == "cifar100" and _cifar100_archive(folder, download):
        return load_cifar100_archive(folder)
    train, test, classes = _encoded_sets(
        name,
        folder,
        (test_split,) if test_split else TEST_SPLITS_OF_IMAGENET if name == "imagenet" else TEST_SPLITS,
        on_bad_image,
        image_column=image_column,
        label_column=label_column,
        num_classes={"cifar100": CLASSES, "imagenet": IMAGENET_CLASSES}.get(name, num_classes),
    )
    return _dataset(name, train, test, classes, max_decoded_bytes)


def _encoded_sets(
    name: str, folder: Path, test_splits: tuple[str, ...], on_bad_image: OnBadImage, **columns: Any
) -> tuple[Encoded, Encoded, int]:
    if _is_parquet(name, folder):
        train, test, classes = load_parquet(folder, test_splits=test_splits, on_bad_image=on_bad_image, **columns)
        found = len(np.unique(train.labels)) if name == "imagenet" else classes
    else:
        train, test, found = load_folder(folder, test_splits=test_splits, on_bad_image=on_bad_image)
    expected = columns["num_classes"] or found
    if found != expected:
        raise ValueError(
            f"{folder} has training images of {found} classes, and {expected} are expected of {name!r}; "
            "correct num_classes, or load a set that is not ImageNet-1k as 'parquet' or 'folder'."
        )
    return train, test, expected


def _dataset(name: str, train: Encoded, test: Encoded, num_classes: int, max_decoded_bytes: int) -> Dataset:
    decoded = in_memory(train, test, max_decoded_bytes)
    if decoded is None:
        shape = (STREAMED_SIZE, STREAMED_SIZE, 3)
        return Dataset(name, train, test, num_classes, shape, IMAGENET_MEAN, IMAGENET_STD)
    mean, std = channel_moments(decoded[0].images)
    height, width, channels = decoded[0].images.shape[1:]
    return Dataset(name, *decoded, num_classes, (height, width, channels), mean, std)


def _folder(name: str, data_dir: str | Path | None, download: bool) -> Path:
    root = os.environ.get("LOOKSAM_DATA")
    if data_dir is None and not root:
        raise FileNotFoundError(f"data set {name!r} needs files; pass data_dir=, or set LOOKSAM_DATA to their folder.")
    folder = Path(data_dir) if data_dir is not None else Path(str(root))
    if root and not folder.exists() and not folder.is_absolute() and (Path(root) / folder).is_dir():
        folder = Path(root) / folder
    if name in ("cifar100", "imagenet") and (folder / name).is_dir():
        return folder / name
    if not folder.is_dir() and not download:
        raise FileNotFoundError(f"data_dir={str(folder)!r} is not a folder; pass the folder that holds {name!r}.")
    return folder


def _cifar100_archive(folder: Path, download: bool) -> bool:
    """Is the binary archive to be read, fetched first where that was asked for?"""
    if (folder / ARCHIVE).exists():
        return True
    if has_parquet(folder):
        return False
    if download:
        download_cifar100(folder)
        return True
    pickled = f" ({PICKLED_ARCHIVE} is there, and is not read: it is pickled)" if _has_pickled(folder) else ""
    raise FileNotFoundError(
        f"{folder} has neither {ARCHIVE} nor train-*.parquet{pickled}; "
        f"pass download=True (--download), or put the archive from {URL} there."
    )


def _has_pickled(folder: Path) -> bool:
    return (folder / PICKLED_ARCHIVE).exists()


def _is_parquet(name: str, folder: Path) -> bool:
    if name in ("parquet", "cifar100"):
        return True
    if name == "folder":
        return False
    if not has_parquet(folder) and not has_folders(folder):
        raise FileNotFoundError(f"{folder} has neither train-*.parquet nor train/<class>/; put {name} there.")
    return has_parquet(folder)
