"""Image folders with one directory per class, ``train/<class>/*.jpg``; classes are numbered in sorted order."""

import os
from pathlib import Path

import numpy as np

from looksam.trainer.data.reading.dataset import DataError, Encoded, OnBadImage, Splits, digest_of

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"))
FILES_MEASURED = 64  # whose sizes are part of a fingerprint: enough to know other files, few enough to repair one image
_SHOWN = 5  # names of what is there, in a message


def has_class_folders(folder: Path) -> bool:
    """Whether the folder has a directory ``train``."""
    return (folder / "train").is_dir()


def read_class_folders(
    folder: Path,
    *,
    on_bad_image: OnBadImage = "fail",
    test_splits: tuple[str, ...] = ("test", "val"),
    validation_splits: tuple[str, ...] = (),
) -> Splits:
    """Returns the splits of ``train/<class>/*.jpg`` and ``test`` or ``val/<class>/*.jpg``.

    All splits must have the same classes. Hidden files are ignored, and so are files that are not images by their
    suffix, which are reported in ``notes``.

    Args:
      folder: the folder with a directory per split.
      on_bad_image: 'fail' or 'skip', for images that cannot be decoded.
      test_splits: the first of these that exists is the test set.
      validation_splits: the first of these that exists, and is not the test set, is the validation set.
    """
    train, test = _split(folder, ("train",)), _split(folder, test_splits)
    validation = next((folder / name for name in validation_splits if _is_other_split(folder / name, test)), None)
    classes = _classes(train)
    for other in (test, validation):
        if other is not None:
            _check_same_classes(train, classes, other)
    ignored: list[Path] = []
    return Splits(
        _encoded(train, classes, on_bad_image, ignored),
        _encoded(test, classes, on_bad_image, ignored),
        tuple(classes),
        None if validation is None else _encoded(validation, classes, on_bad_image, ignored),
        _notes(ignored),
    )


def _is_other_split(path: Path, test: Path) -> bool:
    return path.is_dir() and path != test


def _check_same_classes(train: Path, classes: list[str], other: Path) -> None:
    odd = sorted(set(classes) ^ set(_classes(other)))
    if odd:
        raise ValueError(
            f"{train} and {other} differ in their classes ({len(odd)} in one only, e.g. {odd[0]!r}); "
            "give both the same class directories."
        )


def _split(folder: Path, names: tuple[str, ...]) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; pass the folder that holds train/ and test/.")
    for name in names:
        if (folder / name).is_dir():
            return folder / name
    wanted = " or ".join(f"{name}/" for name in names)
    there = ", ".join(path.name for path in _entries(folder)[:_SHOWN]) or "nothing"
    raise FileNotFoundError(f"{folder} has no {wanted} (there: {there}); {_where_to_look(folder, names)}.")


def _where_to_look(folder: Path, names: tuple[str, ...]) -> str:
    if any(folder.glob("*.parquet")) or any(folder.glob("*/*.parquet")):
        return "pass --dataset parquet for Parquet files"
    deeper = next((path.parent for path in sorted(folder.glob(f"*/{names[0]}")) if path.is_dir()), None)
    if deeper:
        return f"pass --data-dir {deeper}"
    put = f"put the images into {names[0]}/<class>/"
    return put if names == ("train",) else f"{put}, or pass the name of another split as --test-split"


def _entries(folder: Path) -> list[Path]:
    """Returns what a folder holds, sorted, without hidden files. A link to nothing is an error."""
    entries = []
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not os.path.exists(entry.path):
                raise DataError.from_os(Path(entry.path), FileNotFoundError())
            entries.append(Path(entry.path))
    return sorted(entries)


def _classes(split: Path) -> list[str]:
    classes = [path.name for path in _entries(split) if path.is_dir()]
    if not classes:
        raise ValueError(f"{split} has no class directories; put the images into {split}/<class>/.")
    return classes


def _encoded(split: Path, classes: list[str], on_bad_image: OnBadImage, ignored: list[Path]) -> Encoded:
    """Returns the images of a split, and adds the files that are none to ``ignored``."""
    paths: list[Path] = []
    labels: list[int] = []
    ignored += [path for path in _entries(split) if path.name not in classes]
    for label, name in enumerate(classes):
        entries = _entries(split / name)
        images = [path for path in entries if path.suffix.lower() in SUFFIXES]
        ignored += [path for path in entries if path.suffix.lower() not in SUFFIXES]
        if not images:
            there = ", ".join(path.name for path in entries[:_SHOWN]) or "nothing"
            raise ValueError(
                f"class directory {split / name} has no images ({', '.join(sorted(SUFFIXES))}; there: {there}); "
                "fill or delete it."
            )
        paths += images
        labels += [label] * len(images)
    return Encoded(FileRows(paths), np.array(labels, np.int32), on_bad_image)


def _notes(ignored: list[Path]) -> tuple[str, ...]:
    if not ignored:
        return ()
    more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
    return (f"ignored {ignored[0]}{more}: not an image in a class directory, by its name",)


class FileRows:
    """Rows that are files with one image each."""

    def __init__(self, paths: list[Path]):
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, row: int) -> bytes:
        try:
            return self._paths[row].read_bytes()
        except OSError as error:
            raise DataError.from_os(self._paths[row], error) from error

    def place(self, row: int) -> str:
        return str(self._paths[row])

    def blocks(self) -> None:
        return None

    def blocks_at_once(self) -> int:
        return 1

    def fingerprint(self) -> str:
        """Returns a digest of the names of all files and the sizes of some of them."""
        names = [f"{path.parent.name}/{path.name}" for path in self._paths]
        measured = self._paths[:: -(-len(self._paths) // FILES_MEASURED)]
        return digest_of(names, [path.stat().st_size for path in measured])
