"""What loading a dataset returns: train and test, each a small set in memory or a large one encoded on disk."""

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

T = TypeVar("T")
OnBadImage = Literal["fail", "skip"]
ON_BAD_IMAGE = ("fail", "skip")

_IMAGES_AT_ONCE = 4096  # for counting pixel values: np.bincount makes its input eight times larger


class DataError(ValueError):
    """Files of a dataset that cannot be read. The message names the file, what is wrong with it, and the fix."""

    @classmethod
    def from_os(cls, path: Path, error: OSError) -> "DataError":
        """Returns the error for a file that the operating system does not give us."""
        if path.is_symlink() and not path.exists():
            return cls(
                f"{path} is a link to {path.readlink()}, which does not exist; restore that, or delete the link."
            )
        return cls(f"cannot read {path}: {os.strerror(error.errno) if error.errno else error}; bring it back.")


@dataclass(frozen=True, eq=False)
class Images:
    """A small set, decoded, in the host's memory."""

    images: np.ndarray  # uint8 (n, h, w, c)
    labels: np.ndarray  # int32 (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> "Images":
        """Returns the subset with these rows."""
        return Images(self.images[rows], self.labels[rows])

    def with_labels(self, labels: np.ndarray) -> "Images":
        """Returns the same images with other labels."""
        return Images(self.images, _one_per_image(labels, len(self.images)))


class Rows(Protocol):
    """Random access to encoded images on disk: what a new format implements.

    Instances are pickled to the worker processes, so they hold paths, and open files only when they first read.
    """

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes:
        """Returns the encoded image. May be called from several threads."""

    def place(self, row: int) -> str:
        """Returns where a person finds the row, e.g. 'train-0.parquet row 17'."""

    def blocks(self) -> np.ndarray | None:
        """Returns, for each row, the block that is read from disk at once; None if every row is read alone."""

    def blocks_at_once(self) -> int:
        """Returns how many blocks a reader keeps in memory."""

    def fingerprint(self) -> str:
        """Returns a digest of what the files hold, quickly: the same in another folder, different for other files."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A large set: labels in memory, images read and decoded when they are needed."""

    rows: Rows
    labels: np.ndarray  # int32 (n,)
    on_bad_image: OnBadImage = "fail"
    index: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (n,), the rows in use; all by default

    def __post_init__(self) -> None:
        if self.on_bad_image not in ON_BAD_IMAGE:
            raise ValueError(f"on_bad_image={self.on_bad_image!r} is unknown; pass 'fail' or 'skip'.")
        if not self.index.size:
            object.__setattr__(self, "index", np.arange(len(self.rows)))
        _one_per_image(self.labels, len(self.index))

    def __len__(self) -> int:
        return len(self.index)

    def read(self, i: int) -> bytes:
        """Returns the encoded bytes of image i."""
        return self.rows.read(int(self.index[i]))

    def place(self, i: int) -> str:
        """Returns where a person finds image i."""
        return self.rows.place(int(self.index[i]))

    def blocks(self) -> np.ndarray | None:
        """Returns the block of each image, or None if every image is read alone."""
        blocks = self.rows.blocks()
        return None if blocks is None else blocks[self.index]

    def take(self, rows: np.ndarray) -> "Encoded":
        """Returns the subset with these rows."""
        rows = np.asarray(rows)
        if not len(rows):
            raise ValueError("an encoded set cannot be empty; take at least one row.")
        return replace(self, index=self.index[rows], labels=self.labels[rows])

    def with_labels(self, labels: np.ndarray) -> "Encoded":
        """Returns the same images with other labels."""
        return replace(self, labels=_one_per_image(labels, len(self.index)))


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a dataset as its files hold them: what reading a format returns."""

    train: Encoded
    test: Encoded
    class_names: tuple[str, ...]
    validation: Encoded | None = None  # where the files have it in addition to a test split
    notes: tuple[str, ...] = ()  # what the user should know, one line each

    def named(self) -> dict[str, Encoded]:
        """Returns the splits that are there, by name."""
        return present(train=self.train, validation=self.validation, test=self.test)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test, with what a model needs to know of them."""

    name: str
    train: Images | Encoded
    test: Images | Encoded
    num_classes: int
    image_shape: tuple[int, int, int]  # (h, w, c); for an encoded set, the size to which images are cropped
    mean: tuple[float, ...]  # per channel, pixels scaled to [0, 1]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()  # one per class; "0", "1", ... by default
    validation: Images | Encoded | None = None  # to select on, where the dataset has it in addition to a test split
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of the files of each split, where there are files
    notes: tuple[str, ...] = ()  # what the user should know, one line each

    def __post_init__(self) -> None:
        if not self.class_names:
            object.__setattr__(self, "class_names", numbered(self.num_classes))
        if len(self.class_names) != self.num_classes:
            raise ValueError(
                f"dataset {self.name!r} has {self.num_classes} classes and {len(self.class_names)} class_names; "
                "pass one name per class."
            )

    @classmethod
    def from_images(cls, name: str, train: Images, test: Images, num_classes: int, **more: Any) -> "Dataset":
        """Returns a decoded dataset, with the moments of its training images."""
        check_pixels("train", train)
        check_pixels("test", test)
        height, width, channels = train.images.shape[1:]
        return cls(name, train, test, num_classes, (height, width, channels), *channel_moments(train.images), **more)

    def splits(self) -> dict[str, Images | Encoded]:
        """Returns the splits that are there, by name."""
        return present(train=self.train, validation=self.validation, test=self.test)

    def with_validation_as_test(self) -> "Dataset":
        """Returns the dataset with its validation split, if it has one, in place of the test set."""
        return self if self.validation is None else replace(self, test=self.validation, validation=None)


def present(**splits: T | None) -> dict[str, T]:
    """Returns the splits that are not None."""
    return {name: split for name, split in splits.items() if split is not None}


def numbered(count: int) -> tuple[str, ...]:
    """Returns the names of classes that have none: "0", "1", ..."""
    return tuple(map(str, range(count)))


def check_pixels(split: str, part: Images) -> None:
    """Raises unless a set is uint8 pixels (n, h, w, c) with one label each."""
    images, labels = part.images, part.labels
    if not isinstance(images, np.ndarray) or not isinstance(labels, np.ndarray):
        kinds = f"{type(images).__name__} and {type(labels).__name__}"
        raise TypeError(f"{split}: images and labels are {kinds}; convert both with np.asarray.")
    if images.dtype != np.uint8:
        raise TypeError(f"{split}: images are {images.dtype}; pass uint8 pixels, 0 to 255, which are normalised later.")
    if images.ndim != 4 or not images.size:
        raise ValueError(f"{split}: images have shape {images.shape}; pass (images, height, width, channels).")
    _one_per_image(labels, len(images))


def channel_moments(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and std per channel of uint8 images (n, h, w, c) in [0, 1] units.

    They are exact, from the counts of the 256 values. A constant channel gets std 1, so that dividing by it does no
    harm.
    """
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[-1]):
        share = _value_counts(images[..., channel]) / images[..., channel].size
        mean = share @ values
        means.append(float(mean))
        stds.append(float(np.sqrt(share @ (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)


def digest_of(*values: Any) -> str:
    """Returns a short digest of lists of strings and numbers."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]


def require(module: str) -> Any:
    """Imports an optional package on first use; an ImportError names the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"looksam.trainer.data needs {module}, which cannot be imported ({error}): pip install 'looksam[train]'",
            name=module,
        ) from error


def _value_counts(plane: np.ndarray) -> np.ndarray:
    starts = range(0, len(plane), _IMAGES_AT_ONCE)
    parts = [np.bincount(plane[i : i + _IMAGES_AT_ONCE].ravel(), minlength=256) for i in starts]
    return np.sum(parts, axis=0)


def _one_per_image(labels: np.ndarray, count: int) -> np.ndarray:
    if labels.shape != (count,):
        raise ValueError(f"labels have shape {labels.shape} for {count} images; pass one label per image.")
    return labels.astype(np.int32, copy=False)
