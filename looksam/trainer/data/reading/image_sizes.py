"""Image sizes: they decide whether a dataset is decoded into memory or streamed, and the size at which it is streamed.

A dataset of one size that fits is decoded, and keeps its size. Others are streamed: decoded as they are read, with
random crops in training and centre crops in evaluation. A few images of another size than all the rest are an error,
because a model would see all images differently on account of them; an explicit ``image_size`` allows them.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from looksam.trainer.data.reading.dataset import DataError, Encoded, Images, Splits
from looksam.trainer.data.reading.decode import BadImageError, OtherSizeError, decode_splits, image_size_of

STREAMED_SIZE = 224  # of streamed images, unless all are smaller squares or the size is given
ODD_SHARE = 0.1  # up to this share of the training images, other sizes are taken for a mistake

_SAMPLED = 64

Size = tuple[int, int]  # width, height


class Streamed(NamedTuple):
    """The decision to stream a dataset."""

    side: int  # of the square crops
    note: str  # for the user


def decoded_or_streamed(splits: Splits, limit: int, image_size: int | None = None) -> dict[str, Images] | Streamed:
    """Decodes all splits into memory, or returns how they are to be streamed.

    Args:
      splits: the dataset.
      limit: in bytes, of the decoded images of all splits; larger datasets are streamed.
      image_size: the side to which streamed images are cropped; by default their own if all are squares of one size
        below 224, else 224.
    """
    sizes = _sizes(splits.train, _sample(splits.train))
    if not sizes:
        raise BadImageError(f"{splits.train.place(0)} and all rows after it: no readable image; check the files.")
    width, height = _usual(sizes)
    fits = sum(map(len, splits.named().values())) * width * height * 3 <= limit
    if fits and _others_are_few(sizes):
        try:
            return decode_splits(splits, (height, width, 3))
        except OtherSizeError:
            sizes = _sizes(splits.train, range(len(splits.train)))
            if image_size is None and _others_are_few(sizes):
                raise _odd_size(splits, _usual(sizes)) from None
            sizes += _sizes(splits.test, range(len(splits.test)))
    return _streamed(splits, sizes, image_size)


def _sample(source: Encoded) -> Iterable[int]:
    """Returns rows spread over a set; of one that is read in blocks, over its first and last block alone."""
    rows, blocks = np.arange(len(source)), source.blocks()
    if blocks is not None:
        rows = rows[(blocks == blocks[0]) | (blocks == blocks[-1])]
    spread = np.linspace(0, len(rows) - 1, min(_SAMPLED, len(rows)))
    return [int(row) for row in rows[spread.astype(np.int64)]]


def _sizes(source: Encoded, rows: Iterable[int]) -> Counter[Size]:
    """Returns how many of these images have each size; only their headers are decoded."""
    found: Counter[Size] = Counter()
    for row in rows:
        try:
            found[image_size_of(source.read(row), source.place(row))] += 1
        except BadImageError:
            if source.on_bad_image == "fail":
                raise
    return found


def _usual(sizes: Counter[Size]) -> Size:
    return sizes.most_common(1)[0][0]


def _others_are_few(sizes: Counter[Size]) -> bool:
    """Whether sizes other than the usual one are so rare that they are not meant to be there."""
    return sizes.total() - sizes[_usual(sizes)] <= max(1, ODD_SHARE * sizes.total())


def _odd_size(splits: Splits, usual: Size) -> DataError:
    """Returns the error that names the first image of another size than the usual one."""
    first, count = "", 0
    for split in splits.named().values():
        for row in range(len(split)):
            for size in _sizes(split, [row]):
                if size != usual:
                    first = first or f"{split.place(row)} has {_text(size)} pixels"
                    count += 1
    others = "all other images have" if count == 1 else f"{count} images, this one the first, differ from the usual"
    return DataError(
        f"{first}, and {others} {_text(usual)}; resize or remove what differs, or pass --image-size "
        f"{min(usual)} to crop and resize all images to that."
    )


def _streamed(splits: Splits, sizes: Counter[Size], image_size: int | None) -> Streamed:
    width, height = usual = _usual(sizes)
    own = width if _others_are_few(sizes) and width == height < STREAMED_SIZE else STREAMED_SIZE
    side = image_size or own
    kind = _text(usual) if len(sizes) == 1 else f"several sizes (such as {' and '.join(map(_text, list(sizes)[:2]))})"
    return Streamed(
        side,
        f"{len(splits.train)} training images of {kind} are decoded as they are read: random crops to {side}×{side} in "
        f"training, centre crops in evaluation{'' if image_size else ' (--image-size sets another size)'}",
    )


def _text(size: Size) -> str:
    return f"{size[0]}×{size[1]}"
