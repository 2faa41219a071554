"""Labels are checked before any image is decoded: an error names the file, the row and the value."""

from collections.abc import Callable

import numpy as np


def check_labels(labels: np.ndarray, num_classes: int, place: Callable[[int], str], fix: str = "") -> np.ndarray:
    """The labels as int32, all of them in 0 .. num_classes - 1."""
    if not np.issubdtype(labels.dtype, np.integer):
        first = f" ({place(0)}: {labels[0]!r})" if len(labels) else ""
        raise TypeError(f"labels are {labels.dtype}, not integers{first}; store class numbers from 0.")
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        row = int(wrong[0])
        raise ValueError(
            f"{place(row)}: label {labels[row]} is outside 0..{num_classes - 1} ({wrong.size} such rows); "
            + (fix or "correct the labels, or pass the true num_classes.")
        )
    return labels.astype(np.int32)


def check_class_count(num_classes: int) -> int:
    if isinstance(num_classes, bool) or not isinstance(num_classes, int | np.integer):
        raise TypeError(f"num_classes={num_classes!r} is not an int; pass how many classes there are.")
    if num_classes < 1:
        raise ValueError(f"num_classes={num_classes} is out of range; pass num_classes >= 1.")
    return int(num_classes)
