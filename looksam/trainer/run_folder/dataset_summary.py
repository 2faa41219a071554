"""The summary of a run's data, ``data.json`` in its folder: what a resumed run has to find, and predictions need.

It holds the class names, the shape and normalisation of the images, and for every split the number of images, how many
there are of each class, and digests of the labels in order and of the files. Making it reads no image, so it is quick
for large datasets too.
"""

import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from looksam.trainer.data import Dataset, Encoded, Images
from looksam.trainer.run_folder.run_directory import RunError, check_version, write_atomically

NAME = "data.json"
VERSION = 1
TOLERANCE = 0.002  # of mean and std: another version of a JPEG decoder changes pixels by rounding
SHOWN_CLASSES = 3  # in a message


@dataclasses.dataclass(frozen=True)
class SplitSummary:
    """What is known of the images of one split, as the run uses them."""

    images: int
    images_per_class: tuple[int, ...]
    labels: str  # SHA-256 of the labels, in order
    files: str  # fingerprint of the files as they are on disk; empty for data without files

    @classmethod
    def of(cls, split: Images | Encoded, num_classes: int, files: str = "") -> "SplitSummary":
        """Returns the summary of a split."""
        labels = np.ascontiguousarray(split.labels, "<i4")
        counts = np.bincount(labels, minlength=num_classes)
        return cls(len(split), tuple(counts.tolist()), hashlib.sha256(labels.tobytes()).hexdigest(), files)


@dataclasses.dataclass(frozen=True)
class DatasetSummary:
    """What a run needs to know of its data without reading it.

    A prediction resizes or crops an image to ``image_shape``, scales pixels to [0, 1], and normalises them with
    ``mean`` and ``std``; logit i is that of ``class_names[i]``.
    """

    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]  # (h, w, c)
    mean: tuple[float, ...]  # per channel, pixels scaled to [0, 1]
    std: tuple[float, ...]
    crops: bool  # whether images are streamed, and so scaled and cropped at their centre, or resized as a whole
    splits: dict[str, SplitSummary]  # "train", "test", and "validation" where the dataset has one

    @classmethod
    def of(cls, dataset: Dataset) -> "DatasetSummary":
        """Returns the summary of a dataset, as prepared for a run."""
        splits = {
            name: SplitSummary.of(split, dataset.num_classes, dataset.fingerprints.get(name, ""))
            for name, split in dataset.splits().items()
        }
        crops = isinstance(dataset.train, Encoded)
        return cls(dataset.class_names, dataset.image_shape, dataset.mean, dataset.std, crops, splits)

    def write(self, run_dir: str | pathlib.Path) -> None:
        """Writes ``data.json`` into a run's folder, atomically."""
        text = json.dumps({"version": VERSION, "data": dataclasses.asdict(self)}, indent=1) + "\n"
        write_atomically(pathlib.Path(run_dir) / NAME, text.encode())

    @classmethod
    def read(cls, run_dir: str | pathlib.Path) -> "DatasetSummary":
        """Returns the summary in a run's folder. Raises RunError where there is none, or one that cannot be read."""
        path = pathlib.Path(run_dir) / NAME
        if not path.exists():
            raise RunError(
                f"{run_dir} has no {NAME}: no step was taken there, or the run is of an older looksam. "
                "Run its `looksam train` command again to write it."
            )
        try:
            stored = json.loads(path.read_text())
        except (ValueError, OSError) as error:
            raise RunError(f"{path} is damaged: it is not JSON ({error}); start in a new --run-dir.") from error
        version = stored.get("version") if isinstance(stored, dict) else None
        check_version(str(path), version, VERSION, "start in a new --run-dir")
        try:
            return cls._from_dict(stored["data"])
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{path} is damaged: a setting is missing or wrong ({error}); start in a new --run-dir."
            ) from error

    @classmethod
    def _from_dict(cls, stored: dict[str, Any]) -> "DatasetSummary":
        lists = {name: tuple(stored[name]) for name in ("class_names", "image_shape", "mean", "std")}
        splits = {
            name: SplitSummary(**(split | {"images_per_class": tuple(split["images_per_class"])}))
            for name, split in stored["splits"].items()
        }
        return cls(splits=splits, crops=stored["crops"], **lists)

    def check_same(self, other: "DatasetSummary", run_dir: str | pathlib.Path) -> None:
        """Raises RunError, naming the first difference, unless this data is the data of a run.

        Args:
          other: the summary in the run's folder.
          run_dir: the run's folder, for the message.
        """
        difference = self._difference(other)
        if difference:
            raise RunError(
                f"{run_dir} holds a run on other data: {difference}. "
                "Pass the run's own data as --data-dir, or another --run-dir."
            )

    def _difference(self, there: "DatasetSummary") -> str:
        return (
            _other_names(self.class_names, there.class_names)
            or _other("splits", list(self.splits), list(there.splits))
            or _other("image shape", self.image_shape, there.image_shape)
            or next(filter(None, (self._split_difference(name, there) for name in self.splits)), "")
            or _other_moments("mean", self.mean, there.mean)
            or _other_moments("std", self.std, there.std)
        )

    def _split_difference(self, name: str, there: "DatasetSummary") -> str:
        ours, theirs = self.splits[name], there.splits[name]
        counts = zip(self.class_names, ours.images_per_class, theirs.images_per_class, strict=True)
        odd = [f"{them} of class {label!r} there, {us} here" for label, us, them in counts if us != them]
        if odd:
            return f"{name} images, {', '.join(odd[:SHOWN_CLASSES])}{', …' if len(odd) > SHOWN_CLASSES else ''}"
        if ours.labels != theirs.labels:
            return f"the {ours.images} {name} images have the same classes, but in another order, or other labels"
        if ours.files != theirs.files:
            return f"the {ours.images} {name} images have the same labels, but are other files"
        return ""


def _other(what: str, here: Any, there: Any) -> str:
    return "" if here == there else f"{what} {there} there, {here} here"


def _other_names(here: tuple[str, ...], there: tuple[str, ...]) -> str:
    if len(here) != len(there):
        return f"{len(there)} classes there, {len(here)} here"
    pairs = enumerate(zip(here, there, strict=True))
    return next((f"class {i} is {them!r} there, {us!r} here" for i, (us, them) in pairs if us != them), "")


def _other_moments(what: str, here: tuple[float, ...], there: tuple[float, ...]) -> str:
    if len(here) == len(there) and np.allclose(here, there, rtol=0, atol=TOLERANCE):
        return ""
    shown = ([round(value, 4) for value in values] for values in (there, here))
    return "the pixels differ, {} {} there, {} here".format(what, *shown)
