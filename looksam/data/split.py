"""A validation split, held out of the training set."""

from typing import TypeVar

import numpy as np

from looksam.data.dataset import Encoded, Images
from looksam.data.seeds import generator

Set = TypeVar("Set", Images, Encoded)


def hold_out(images: Set, share: float | int, seed: int) -> tuple[Set, Set]:
    """(kept, held out), both in the original order, chosen by the seed and stratified by class.

    Args:
      images: the set to divide.
      share: how much is held out: a float in (0, 1) is a fraction, an int a count.
      seed: the split is a pure function of it and of the labels.
    """
    count = _count(share, len(images))
    rng = generator("hold out", seed)
    held = np.zeros(len(images), bool)
    for label, quota in _quotas(images.labels, count).items():
        held[rng.permutation(np.flatnonzero(images.labels == label))[:quota]] = True
    return images.take(np.flatnonzero(~held)), images.take(np.flatnonzero(held))


def _count(share: float | int, n: int) -> int:
    if isinstance(share, bool) or not isinstance(share, int | float | np.integer | np.floating):
        raise TypeError(f"share={share!r} is not a number; pass a fraction such as 0.1 or a count such as 5000.")
    fraction = isinstance(share, float | np.floating)
    count = round(share * n) if fraction and 0 < share < 1 else int(share) if not fraction else 0
    if not 0 < count < n:
        raise ValueError(
            f"share={share} holds out no image or all of the {n}; pass a fraction in (0, 1) or a count in 1..{n - 1}."
        )
    return count


def _quotas(labels: np.ndarray, count: int) -> dict[int, int]:
    """How many of each class, in proportion; what rounding leaves over goes to the largest remainders."""
    classes, sizes = np.unique(labels, return_counts=True)
    exact = sizes * (count / len(labels))
    quotas = np.floor(exact).astype(np.int64)
    largest = np.argsort(quotas - exact, kind="stable")
    quotas[largest[: count - quotas.sum()]] += 1
    return dict(zip(classes.tolist(), quotas.tolist(), strict=True))
