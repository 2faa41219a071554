"""The metrics of a run: ``metrics.jsonl``, and on request the same in trackers such as TensorBoard.

A line of ``metrics.jsonl`` is ``{"step": 50, "split": "train", "loss": 0.25, "accuracy": 91.5, …}``. Accuracies are in
percent. Floats are written so that they read back as the same bits, and equal runs give equal bytes; times have names
that end in ``_seconds`` or ``_per_second``, to be left out when runs are compared. JSON has no NaN and no infinity:
both are ``null`` there, and read back as NaN.
"""

import contextlib
import io
import json
import math
import numbers
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from looksam.trainer.run_folder.run_directory import RunError, write_atomically
from looksam.trainer.run_folder.trackers import Tracker

NAME = "metrics.jsonl"


class MetricsLog:
    """Appends to the metrics in a run's folder; every line is passed to the system before ``write`` returns.

    A run that resumes from a checkpoint calls ``cut_back`` first.

    Args:
        directory: the run's folder.
        trackers: get the same numbers, and are closed with the log.
        enabled: write; not so in all processes of a run but the first.
    """

    def __init__(self, directory: pathlib.Path, *, trackers: Sequence[Tracker] = (), enabled: bool = True) -> None:
        self._path, self._trackers, self._enabled = pathlib.Path(directory) / NAME, trackers, enabled
        self._file: io.BufferedWriter | None = None

    def write(self, step: int, split: str, values: Mapping[str, Any]) -> None:
        """Adds a line. Values are numbers: Python's, or scalar arrays."""
        if not self._enabled:
            return
        scalars = {name: _number(name, value) for name, value in values.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        line = json.dumps({"step": int(step), "split": split, **finite}, allow_nan=False) + "\n"
        with self._stop_on_full_disk():
            if self._file is None:
                self._file = self._path.open("ab")
            self._file.write(line.encode())
            self._file.flush()
            for tracker in self._trackers:
                tracker.write(int(step), {f"{split}/{name}": value for name, value in scalars.items()})

    def cut_back(self, step: int) -> None:
        """Forgets what was measured after ``step``, and a last line that a kill left incomplete."""
        if not self._enabled:
            return
        self._close_file()
        with self._stop_on_full_disk():
            for tracker in self._trackers:
                tracker.cut_back(step)
            data = self._path.read_bytes() if self._path.exists() else b""
            kept = b"".join(line for line, record in _records(self._path, data) if record["step"] <= step)
            if kept != data:
                write_atomically(self._path, kept)

    def close(self) -> None:
        try:
            self._close_file()
        finally:
            with self._stop_on_full_disk():
                for tracker in self._trackers:
                    tracker.close()

    def _close_file(self) -> None:
        with self._stop_on_full_disk():
            file, self._file = self._file, None
            if file is not None:
                file.close()

    @contextlib.contextmanager
    def _stop_on_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):  # what is still in the buffer is lost
                    file.close()
            raise RunError(
                f"metrics cannot be written to {self._path} ({error.strerror or error}). What was saved before is "
                "safe; make room on the disk, or make the folder writable, and run the same command again to resume."
            ) from error


def read_metrics(path: str | pathlib.Path) -> list[dict[str, Any]]:
    """Returns the lines of a ``metrics.jsonl``, or of the one in a run's folder, without an incomplete last one."""
    path = pathlib.Path(path)
    path = path / NAME if path.is_dir() else path
    records = [record for _, record in _records(path, path.read_bytes())]
    return [{name: math.nan if value is None else value for name, value in record.items()} for record in records]


def _records(path: pathlib.Path, data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields each line with its record. A last line without its end was cut off by a kill, and is left out."""
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            record = json.loads(line)
            int(record["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"line {number} of {path} is not a line of metrics: {line[:60]!r}. "
                "Nothing was changed; remove that line, and run the same command again."
            ) from error
        yield line, record


def _number(name: str, value: Any) -> int | float:
    if name in ("step", "split"):
        raise ValueError(f"a value is called {name!r}, which every line has already; give it another name.")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, str):
        raise TypeError(f"{name}={value!r} is a string; metrics are numbers.")
    return float(value)
