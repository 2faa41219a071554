"""Optional packages, imported where they are first needed, so that looksam itself stays light.

What a data source gives: a small set as one array, or a large one as encoded images on disk.

Mean and standard deviation of each channel, which models subtract and divide by.
"""

import importlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np


def require(module: str) -> Any:
    """The module, or an ImportError that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"looksam.trainer.data needs {module}, which cannot be imported ({error}): pip install 'looksam[train]'",
            name=module,
        ) from error


OnBadImage = Literal["fail", "skip"]
ON_BAD_IMAGE = ("fail", "skip")


@dataclass(frozen=True, eq=False)
class Images:
    """A small set, decoded, in host memory."""

    images: np.ndarray  # uint8 (n, h, w, c)
    labels: np.ndarray  # int32 (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> "Images":
        return Images(self.images[rows], self.labels[rows])

    def with_labels(self, labels: np.ndarray) -> "Images":
        return Images(self.images, _same_count(labels, self))


class Rows(Protocol):
    """Random access to encoded images on disk. Pickled by path, and opened anew in each process that reads."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes:
        """The encoded image. May be called from several threads."""

    def place(self, row: int) -> str:
        """Where a person finds the row, e.g. 'train-0.parquet row 17'."""

    def blocks(self) -> np.ndarray | None:
        """For each row, the block that is read from disk at once; None where every row is read alone."""

    def blocks_at_once(self) -> int:
        """How many blocks a reader keeps in memory."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A large set: labels in memory, images read and decoded when they are asked for."""

    rows: Rows
    labels: np.ndarray  # int32 (n,)
    on_bad_image: OnBadImage = "fail"
    index: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (n,), which of rows; all by default

    def __post_init__(self) -> None:
        if self.on_bad_image not in ON_BAD_IMAGE:
            raise ValueError(f"on_bad_image={self.on_bad_image!r} is unknown; pass 'fail' or 'skip'.")
        if not self.index.size:
            object.__setattr__(self, "index", np.arange(len(self.rows)))
        _same_count(self.labels, self)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, i: int) -> bytes:
        return self.rows.read(int(self.index[i]))

    def place(self, i: int) -> str:
        return self.rows.place(int(self.index[i]))

    def blocks(self) -> np.ndarray | None:
        blocks = self.rows.blocks()
        return None if blocks is None else blocks[self.index]

    def take(self, rows: np.ndarray) -> "Encoded":
        rows = np.asarray(rows)
        if not len(rows):
            raise ValueError("an encoded set of no images was asked for; take at least one row.")
        return replace(self, index=self.index[rows], labels=self.labels[rows])

    def with_labels(self, labels: np.ndarray) -> "Encoded":
        return replace(self, labels=_same_count(labels, self))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test, with what a model needs to know of them."""

    name: str
    train: Images | Encoded
    test: Images | Encoded
    num_classes: int
    image_shape: tuple[int, int, int]  # (h, w, c); of an encoded set, the size that ImageNet models take
    mean: tuple[float, ...]  # of each channel, pixels scaled to [0, 1]
    std: tuple[float, ...]


def _same_count(labels: np.ndarray, images: Images | Encoded) -> np.ndarray:
    count = len(images.images) if isinstance(images, Images) else len(images.index)
    if labels.shape != (count,):
        raise ValueError(f"labels have shape {labels.shape} for {count} images; pass one label an image.")
    return labels.astype(np.int32, copy=False)


IMAGENET_MEAN = (0.485, 0.456, 0.406)  # the usual constants, for sets that are too large to measure
IMAGENET_STD = (0.229, 0.224, 0.225)

_IMAGES_AT_ONCE = 4096  # bincount makes its input eight times larger


def channel_moments(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of uint8 images (n, h, w, c) in [0, 1] units, exact: from counts of the 256 values.

    A channel that never varies gets std 1, so that dividing by it is harmless.
    """
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[-1]):
        share = _counts(images[..., channel]) / images[..., channel].size
        mean = share @ values
        means.append(float(mean))
        stds.append(float(np.sqrt(share @ (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)


def _counts(plane: np.ndarray) -> np.ndarray:
    starts = range(0, len(plane), _IMAGES_AT_ONCE)
    parts = [np.bincount(plane[i : i + _IMAGES_AT_ONCE].ravel(), minlength=256) for i in starts]
    return np.sum(parts, axis=0)
