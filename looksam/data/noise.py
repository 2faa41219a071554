"""Label noise: a fixed share of the training labels is replaced by random ones."""

import numpy as np

from looksam.data.labels import check_class_count
from looksam.data.seeds import generator


def with_label_noise(labels: np.ndarray, fraction: float, num_classes: int, seed: int) -> np.ndarray:
    """A copy of the labels in which exactly round(fraction * n), chosen by the seed, are drawn anew.

    The new labels are uniform over ALL classes, so that one in num_classes of them happens to be the true one:
    "30 % random" leaves about 0.7 + 0.3 / num_classes of the labels true.
    """
    if not 0 <= fraction <= 1:  # NaN too
        raise ValueError(f"label noise fraction={fraction} is out of range; pass 0 <= fraction <= 1.")
    check_class_count(num_classes)
    rng = generator("label noise", seed)
    chosen = rng.permutation(len(labels))[: round(fraction * len(labels))]
    noisy = np.array(labels)
    noisy[chosen] = rng.integers(0, num_classes, len(chosen))
    return noisy
