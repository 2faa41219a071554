"""Folders of Parquet files as on the Hugging Face hub: a column of encoded images and a column of labels.

``read_parquet`` finds the columns and checks the labels; ``ParquetRows`` reads the images, one row group at a time.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from looksam.trainer.data.reading.dataset import (
    DataError,
    Encoded,
    OnBadImage,
    Splits,
    digest_of,
    numbered,
    require,
)
from looksam.trainer.data.reading.decode import BadImageError
from looksam.trainer.data.reading.labels import check_class_count, check_labels, count_classes

CACHE_BYTES = 512 * 2**20  # a process keeps row groups up to about this size in memory
WRONG_LABELS = (
    "correct the labels, pass the true --num-classes, or another --test-split where this one hides its labels."
)
LABEL_NAMES = ("label", "fine_label")  # preferred if there are several integer columns
SHARD = re.compile(r"-(\d+)-of-(\d+)[^/]*\.parquet$")
_SHOWN = 5  # names, in a message


def has_parquet(folder: Path) -> bool:
    """Whether the folder, or its subfolder ``data``, has Parquet files of a training split."""
    return bool(_files(folder, "train"))


def read_parquet(
    folder: Path,
    *,
    on_bad_image: OnBadImage = "fail",
    image_column: str | None = None,
    label_column: str | None = None,
    num_classes: int | None = None,
    test_splits: tuple[str, ...] = ("test", "validation"),
    validation_splits: tuple[str, ...] = (),
) -> Splits:
    """Returns the splits of a folder with ``train-*.parquet`` and ``test-*`` or ``validation-*``.

    A split may also be one file, ``train.parquet``, or the files of a folder ``train``.

    Args:
      folder: the folder with the files, or with a subfolder ``data`` that has them.
      on_bad_image: 'fail' or 'skip', for images that cannot be decoded.
      image_column: a struct {bytes, path}; by default the only such column.
      label_column: by default the only integer column, else ``label``, else ``fine_label``.
      num_classes: by default the number of class names in the metadata, else the largest training label + 1.
      test_splits: the first of these that exists is the test set.
      validation_splits: the first of these that exists, and is not the test set, is the validation set.
    """
    files = {"train": _split(folder, ("train",)), "test": _split(folder, test_splits)}
    others = [found for name in validation_splits if (found := _files(folder, name)) and found != files["test"]]
    if others:
        files["validation"] = others[0]
    first = files["train"][0]
    schema = _schema(first)
    image = image_column or _only(_image_columns(schema), "encoded-image", "--image-column", first, schema)
    label = label_column or _label_column(schema, first)
    labels = {split: _labels(paths, image, label) for split, paths in files.items()}
    rows = {split: ParquetRows(paths, image) for split, paths in files.items()}
    names = _class_names(schema, label)
    classes = num_classes or len(names) or count_classes(labels["train"], rows["train"].place)
    check_class_count(classes)
    encoded: dict[str, Any] = {
        split: Encoded(rows[split], check_labels(labels[split], classes, rows[split].place, WRONG_LABELS), on_bad_image)
        for split in files
    }
    return Splits(class_names=names if len(names) == classes else numbered(classes), **encoded)


def _split(folder: Path, names: tuple[str, ...]) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; pass the folder that holds the Parquet files.")
    for name in names:
        if files := _files(folder, name):
            return files
    present = sorted(folder.glob("**/*.parquet"))
    shown = ", ".join(str(path.relative_to(folder)) for path in present[:_SHOWN])
    wanted = " or ".join(f"{name}.parquet or {name}-*.parquet" for name in names)
    raise FileNotFoundError(
        f"{folder} has no {wanted} (Parquet files there: {shown or 'none'}{', …' if len(present) > _SHOWN else ''}); "
        f"{_where_to_look(folder, names, present)}."
    )


def _where_to_look(folder: Path, names: tuple[str, ...], present: list[Path]) -> str:
    deeper = next((path.parent for path in present if _files(path.parent, names[0])), None)
    if deeper:
        return f"pass --data-dir {deeper}"
    if not present and (folder / names[0]).is_dir():
        return "pass --dataset folder for class directories"
    rename = f"name those of the split {names[0]}-….parquet" if present else "pass the folder that holds them"
    return rename if names == ("train",) else f"{rename}, or pass the name of another split as --test-split"


def _files(folder: Path, split: str) -> list[Path]:
    """Returns the files of a split in any of the usual layouts, after checking that no shard is missing."""
    # With [.] it is a pattern, which finds a link to nothing too: that is an error when it is opened.
    patterns = (f"{split}-*.parquet", f"{split}[.]parquet", f"{split}/*.parquet")
    found = (sorted(place.glob(pattern)) for place in (folder, folder / "data") for pattern in patterns)
    return _complete(next(filter(None, found), []))


def _complete(files: list[Path]) -> list[Path]:
    """Returns the files, after checking that all shards are there of those that are numbered: 00000-of-00002."""
    numbers = [(int(match[1]), int(match[2])) for path in files if (match := SHARD.search(path.name))]
    if not numbers:
        return files
    _, total = numbers[0]
    missing = sorted(set(range(total)) - {number for number, _ in numbers})
    if missing:
        raise DataError(
            f"{files[0].parent} has {len(numbers)} of the {total} shards that {files[0].name} belongs to, and lacks "
            f"number {', '.join(f'{number:05}' for number in missing[:_SHOWN])}"
            f"{', …' if len(missing) > _SHOWN else ''}; download what is missing."
        )
    if len(numbers) != total or any(other != total for _, other in numbers):
        raise DataError(
            f"{files[0].parent} has {len(numbers)} shards, and {files[0].name} is one of {total}: these are files of "
            f"several versions, {files[0].name} to {files[-1].name}; keep those of one."
        )
    return files


@contextmanager
def _reading(path: Path, what: str = "is not a readable Parquet file") -> Iterator[None]:
    """Turns what Arrow raises into a DataError that names the file."""
    try:
        yield
    except require("pyarrow").ArrowException as error:
        raise DataError(f"{path} {what} ({error}); download it again.") from error
    except OSError as error:
        if path.exists() and error.errno is None:  # Arrow's own, of damaged data
            raise DataError(f"{path} {what} ({error}); download it again.") from error
        raise DataError.from_os(path, error) from error


def _schema(path: Path) -> Any:
    with _reading(path):
        return require("pyarrow.parquet").read_schema(path)


def _image_columns(schema: Any) -> list[str]:
    return [field.name for field in schema if _is_encoded_image(field.type)]


def _is_encoded_image(kind: Any) -> bool:
    types = require("pyarrow").types
    if not types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    inner = kind.field("bytes").type
    return bool(types.is_binary(inner) or types.is_large_binary(inner))


def _label_column(schema: Any, path: Path) -> str:
    is_integer = require("pyarrow").types.is_integer
    columns = [field.name for field in schema if is_integer(field.type)]
    named = [name for name in LABEL_NAMES if name in columns]
    if len(columns) > 1 and named:
        return named[0]
    return _only(columns, "integer label", "--label-column", path, schema)


def _only(columns: list[str], what: str, argument: str, path: Path, schema: Any) -> str:
    if len(columns) == 1:
        return columns[0]
    if columns:
        raise ValueError(f"{path} has several {what} columns: {', '.join(columns)}; choose one with {argument}.")
    present = ", ".join(f"{field.name}: {field.type}" for field in schema)
    raise ValueError(
        f"{path} has no {what} column (columns: {present}); a struct {{bytes, path}} and an int are needed."
    )


def _labels(files: list[Path], image: str, label: str) -> np.ndarray:
    """Returns the labels of all files, after checking each file's columns."""
    parts = []
    for path in files:
        schema = _schema(path)
        for name in (image, label):
            if name not in schema.names:
                raise ValueError(f"{path} has no column {name!r}; it has {', '.join(schema.names)}.")
        if not _is_encoded_image(schema.field(image).type):
            raise ValueError(f"{path}: column {image!r} is {schema.field(image).type}, not a struct with image bytes.")
        parts.append(_label_values(path, label))
    labels = np.concatenate(parts)
    if not len(labels):
        raise ValueError(f"{files[0]} and the files after it hold no rows; download them again.")
    return labels


def _label_values(path: Path, label: str) -> np.ndarray:
    with _reading(path):
        column = require("pyarrow.parquet").read_table(path, columns=[label]).column(0)
    if not require("pyarrow").types.is_integer(column.type):
        first = f", e.g. {column[0].as_py()!r} in row 0" if len(column) else ""
        raise TypeError(
            f"{path}: label column {label!r} is {column.type}, not an integer{first}; choose another --label-column."
        )
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise ValueError(f"{path} row {row}: label {label!r} is missing (null); give every image a label.")
    return column.to_numpy()


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    """Returns the class names in the hub's metadata, if any."""
    try:
        names = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


class ParquetRows:
    """The rows of several files, one after the other.

    Parquet can be read only by whole row groups (the blocks here), so the most recently used ones are kept. Pickled as
    paths and row counts: each process opens the files itself, when it first reads.
    """

    def __init__(self, paths: list[Path], image_column: str):
        self._paths = paths
        self._column = image_column
        groups = [(file, *group) for file, path in enumerate(paths) for group in _row_groups(path, image_column)]
        self._file = np.array([group[0] for group in groups], np.int64)
        self._group = np.array([group[1] for group in groups], np.int64)
        self._starts = np.cumsum([0] + [group[2] for group in groups])
        self._bytes = [group[3] for group in groups]
        self._at_once = max(1, CACHE_BYTES // max(1, int(np.mean(self._bytes or [1]))))
        self._reset()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_open", "_cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def read(self, row: int) -> bytes:
        block = self._block(row)
        data = self._images(block)[row - int(self._starts[block])].as_py()
        if data is None:
            raise BadImageError(f"{self.place(row)}: column {self._column!r} holds no image bytes; store them inline.")
        return data

    def place(self, row: int) -> str:
        file = self._file[self._block(row)]
        first = self._starts[np.searchsorted(self._file, file)]
        return f"{self._paths[file]} row {row - int(first)}"

    def blocks(self) -> np.ndarray:
        return np.repeat(np.arange(len(self._file)), np.diff(self._starts))

    def blocks_at_once(self) -> int:
        return self._at_once

    def fingerprint(self) -> str:
        """Returns a digest of the rows and bytes of every row group, which the files' metadata have."""
        return digest_of(np.diff(self._starts).tolist(), self._bytes)

    def _block(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is outside 0..{len(self) - 1}")
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _images(self, block: int) -> Any:
        with self._lock:  # Arrow's file reader is not thread-safe
            if block in self._cache:
                self._cache.move_to_end(block)
            else:
                self._cache[block] = self._load(block)
                if len(self._cache) > self._at_once:
                    self._cache.popitem(last=False)
            return self._cache[block]

    def _load(self, block: int) -> Any:
        file, group = int(self._file[block]), int(self._group[block])
        with _reading(self._paths[file], f"is damaged in row group {group}"):
            if file not in self._open:
                self._open[file] = _open(self._paths[file])
            table = self._open[file].read_row_group(group, columns=[f"{self._column}.bytes"])
        return table.column(0).combine_chunks().field("bytes")

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Any] = {}
        self._cache: OrderedDict[int, Any] = OrderedDict()


def _open(path: Path) -> Any:
    return require("pyarrow.parquet").ParquetFile(path, memory_map=True)


def _row_groups(path: Path, image_column: str) -> list[tuple[int, int, int]]:
    """Returns (number, rows, bytes of the images) of each row group that is not empty."""
    with _open(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        return [
            (number, group.num_rows, _column_bytes(group, f"{image_column}.bytes"))
            for number, group in enumerate(groups)
            if group.num_rows
        ]


def _column_bytes(group: Any, name: str) -> int:
    columns = (group.column(i) for i in range(group.num_columns))
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == name)
