"""Image folders with one directory per class, ``train/<class>/*.jpg``; classes are numbered in sorted order."""

from pathlib import Path

import numpy as np

from looksam.trainer.data.reading.dataset import Encoded, OnBadImage

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"))


def has_class_folders(folder: Path) -> bool:
    """Whether the folder has a directory ``train``."""
    return (folder / "train").is_dir()


def read_class_folders(
    folder: Path, *, on_bad_image: OnBadImage = "fail", test_splits: tuple[str, ...] = ("test", "val")
) -> tuple[Encoded, Encoded, int]:
    """Returns (train, test, number of classes) of ``train/<class>/*.jpg`` and ``test`` or ``val/<class>/*.jpg``.

    Both splits must have the same classes. Files that are not images by their suffix are ignored.
    """
    train_folder, test_folder = _split(folder, ("train",)), _split(folder, test_splits)
    train, test = _classes(train_folder), _classes(test_folder)
    if train != test:
        odd = sorted(set(train) ^ set(test))
        raise ValueError(
            f"{train_folder} and {test_folder} differ in their classes ({len(odd)} in one only, e.g. {odd[0]!r}); "
            "give both the same class directories."
        )
    return _encoded(train_folder, train, on_bad_image), _encoded(test_folder, test, on_bad_image), len(train)


def _split(folder: Path, names: tuple[str, ...]) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; pass the folder that holds train/ and test/.")
    for name in names:
        if (folder / name).is_dir():
            return folder / name
    wanted = " or ".join(f"{name}/" for name in names)
    raise FileNotFoundError(f"{folder} has no {wanted}; put the images into {names[0]}/<class>/.")


def _classes(split: Path) -> list[str]:
    classes = sorted(path.name for path in split.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise ValueError(f"{split} has no class directories; put the images into {split}/<class>/.")
    return classes


def _encoded(split: Path, classes: list[str], on_bad_image: OnBadImage) -> Encoded:
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        images = sorted(path for path in (split / name).iterdir() if path.suffix.lower() in SUFFIXES)
        if not images:
            raise ValueError(
                f"class directory {split / name} has no images ({', '.join(sorted(SUFFIXES))}); fill or delete it."
            )
        paths += images
        labels += [label] * len(images)
    return Encoded(FileRows(paths), np.array(labels, np.int32), on_bad_image)


class FileRows:
    """Rows that are files with one image each."""

    def __init__(self, paths: list[Path]):
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, row: int) -> bytes:
        return self._paths[row].read_bytes()

    def place(self, row: int) -> str:
        return str(self._paths[row])

    def blocks(self) -> None:
        return None

    def blocks_at_once(self) -> int:
        return 1
