"""Labels: checked before any image is decoded, replaced by noise, and used for stratified splits."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from looksam.trainer.data.reading.dataset import Encoded, Images
from looksam.trainer.data.reading.order import generator

MAX_CLASSES = 2**24  # more than a classifier could have: labels beyond it are mistakes


def check_labels(labels: np.ndarray, num_classes: int, place: Callable[[int], str], fix: str = "") -> np.ndarray:
    """Returns the labels as int32, all in 0 .. num_classes - 1; an error names the file, the row and the value."""
    if not np.issubdtype(labels.dtype, np.integer):
        first = f" ({place(0)}: {labels[0]!r})" if len(labels) else ""
        raise TypeError(f"labels are {labels.dtype}, not integers{first}; store class numbers from 0.")
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        row = int(wrong[0])
        raise ValueError(
            f"{place(row)}: label {labels[row]} is outside 0..{num_classes - 1} ({wrong.size} such rows); "
            + (fix or "correct the labels, or pass the true --num-classes.")
        )
    return labels.astype(np.int32)


def count_classes(labels: np.ndarray, place: Callable[[int], str]) -> int:
    """Returns how many classes training labels stand for: 0 .. n - 1, each with an image, or it is an error."""
    present = np.unique(labels[labels >= 0])
    gaps = np.flatnonzero(present != np.arange(len(present)))
    if gaps.size:
        row, largest = int(np.argmax(labels)), int(present[-1])
        most = f", or pass --num-classes {largest + 1} if some have no training image" if largest < MAX_CLASSES else ""
        raise ValueError(
            f"{place(row)}: label {largest} would make {largest + 1:,} classes, but no image has label {gaps[0]} "
            f"({len(present):,} different labels in all); number the classes from 0 without gaps{most}."
        )
    return max(1, len(present))


def check_class_count(num_classes: int) -> int:
    """Returns an int >= 1."""
    if isinstance(num_classes, bool) or not isinstance(num_classes, int | np.integer):
        raise TypeError(f"num_classes={num_classes!r} is not an int; pass how many classes there are.")
    if not 1 <= num_classes <= MAX_CLASSES:
        raise ValueError(f"num_classes={num_classes} is out of range; pass 1 <= num_classes <= {MAX_CLASSES}.")
    return int(num_classes)


def with_label_noise(labels: np.ndarray, fraction: float, num_classes: int, seed: int) -> np.ndarray:
    """Returns a copy of the labels in which exactly round(fraction * n), chosen by the seed, are replaced at random.

    The new labels are uniform over ALL classes, so that one in num_classes of them is the true one by chance: with
    30 % random labels, a share of about 0.7 + 0.3 / num_classes is still true.
    """
    if not 0 <= fraction <= 1:  # NaN too
        raise ValueError(f"label noise fraction={fraction} is out of range; pass 0 <= fraction <= 1.")
    check_class_count(num_classes)
    rng = generator("label noise", seed)
    chosen = rng.permutation(len(labels))[: round(fraction * len(labels))]
    noisy = np.array(labels)
    noisy[chosen] = rng.integers(0, num_classes, len(chosen))
    return noisy


Set = TypeVar("Set", Images, Encoded)


def hold_out(images: Set, share: float | int, seed: int, setting: str = "share") -> tuple[Set, Set]:
    """Splits a set into (kept, held out), both in the original order, chosen by the seed and stratified by class.

    Args:
      images: the set to split.
      share: how much is held out: a float in (0, 1) is a fraction, an int a count.
      seed: the split is a pure function of the seed and the labels.
      setting: what the user calls the share, for an error.
    """
    count = _count(share, len(images), setting)
    rng = generator("hold out", seed)
    held = np.zeros(len(images), bool)
    for label, quota in _quotas(images.labels, count).items():
        held[rng.permutation(np.flatnonzero(images.labels == label))[:quota]] = True
    return images.take(np.flatnonzero(~held)), images.take(np.flatnonzero(held))


def _count(share: float | int, n: int, setting: str) -> int:
    if isinstance(share, bool) or not isinstance(share, int | float | np.integer | np.floating):
        raise TypeError(f"{setting}={share!r} is not a number; pass a fraction such as 0.1 or a count such as 5000.")
    fraction = isinstance(share, float | np.floating)
    count = round(share * n) if fraction and 0 < share < 1 else int(share) if not fraction else 0
    if not 0 < count < n:
        raise ValueError(
            f"{setting}={share} holds out no image or all of the {n}; "
            f"pass a fraction in (0, 1) or a count in 1..{n - 1}."
        )
    return count


def _quotas(labels: np.ndarray, count: int) -> dict[int, int]:
    """Returns how many images of each class are held out, in proportion, rounded by the largest remainders."""
    classes, sizes = np.unique(labels, return_counts=True)
    exact = sizes * (count / len(labels))
    quotas = np.floor(exact).astype(np.int64)
    largest = np.argsort(quotas - exact, kind="stable")
    quotas[largest[: count - quotas.sum()]] += 1
    return dict(zip(classes.tolist(), quotas.tolist(), strict=True))
