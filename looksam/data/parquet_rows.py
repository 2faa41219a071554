"""Random access to the encoded images of Parquet files, one row group at a time."""

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from looksam.data.decode import BadImageError
from looksam.data.needs import require

CACHE_BYTES = 512 * 2**20  # a process keeps row groups of about this size in memory


class ParquetRows:
    """The rows of several files, one after the other.

    Parquet can be read only by whole row groups, so the last ones used are kept. Pickled as paths and row counts:
    each process opens the files itself, when it first reads.
    """

    def __init__(self, paths: list[Path], image_column: str):
        self._paths = paths
        self._column = image_column
        groups = [(file, *group) for file, path in enumerate(paths) for group in _row_groups(path, image_column)]
        self._file = np.array([group[0] for group in groups], np.int64)
        self._group = np.array([group[1] for group in groups], np.int64)
        self._starts = np.cumsum([0] + [group[2] for group in groups])
        self._at_once = max(1, CACHE_BYTES // max(1, int(np.mean([group[3] for group in groups] or [1]))))
        self._forget()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_open", "_cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

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

    def _block(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is outside 0..{len(self) - 1}")
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _images(self, block: int) -> Any:
        with self._lock:  # Arrow's file reader is not made for several threads
            if block in self._cache:
                self._cache.move_to_end(block)
            else:
                self._cache[block] = self._load(block)
                if len(self._cache) > self._at_once:
                    self._cache.popitem(last=False)
            return self._cache[block]

    def _load(self, block: int) -> Any:
        file, group = int(self._file[block]), int(self._group[block])
        if file not in self._open:
            self._open[file] = _open(self._paths[file])
        try:
            table = self._open[file].read_row_group(group, columns=[f"{self._column}.bytes"])
        except (require("pyarrow").ArrowException, OSError) as error:
            raise ValueError(f"{self._paths[file]}: row group {group} is damaged ({error}); fetch it again.") from error
        return table.column(0).combine_chunks().field("bytes")

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Any] = {}
        self._cache: OrderedDict[int, Any] = OrderedDict()


def _open(path: Path) -> Any:
    return require("pyarrow.parquet").ParquetFile(path, memory_map=True)


def _row_groups(path: Path, image_column: str) -> list[tuple[int, int, int]]:
    """(number, rows, bytes of the images) of each row group that is not empty."""
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
