"""The metrics of a run: ``metrics.jsonl`` for programs and people, event files for TensorBoard.

A line of ``metrics.jsonl`` is ``{"step": 50, "split": "train", "loss": 0.25, …}``. Floats are written so that they
read back as the same bits, and equal runs give equal bytes; times have names that end in ``_seconds`` or
``_per_second``, to be left out when runs are compared. JSON has no NaN and no infinity: both are ``null`` there,
and read back as NaN.
"""

import contextlib
import io
import json
import math
import numbers
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from looksam.trainer.run_directory import RunError, write_atomically

NAME = "metrics.jsonl"
EVENTS = "events.out.tfevents"


class MetricsLog:
    """Appends to the metrics in a run's folder; every line is passed to the system before ``write`` returns.

    A run that resumes from a checkpoint calls ``cut_back`` first.

    Args:
        directory: the run's folder.
        enabled: write; not so in all processes of a run but the first.
    """

    def __init__(self, directory: pathlib.Path, *, enabled: bool = True) -> None:
        self._directory, self._enabled = pathlib.Path(directory), enabled
        self._path = self._directory / NAME
        self._file: io.BufferedWriter | None = None
        self._events: _Events | None = None
        self._purge_from: int | None = None

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
            if self._events is None:
                self._events = _Events(self._directory, self._purge_from)
            self._events.write(step, {f"{split}/{name}": value for name, value in scalars.items()})

    def cut_back(self, step: int) -> None:
        """Forgets what was measured after ``step``, and a last line that a kill left incomplete."""
        if not self._enabled:
            return
        self.close()
        with self._stop_on_full_disk():
            self._purge_from = step + 1
            data = self._path.read_bytes() if self._path.exists() else b""
            kept = b"".join(line for line, record in _records(self._path, data) if record["step"] <= step)
            if kept != data:
                write_atomically(self._path, kept)

    def close(self) -> None:
        with self._stop_on_full_disk():
            file, self._file = self._file, None
            events, self._events = self._events, None
            for each in (file, events):
                if each is not None:
                    each.close()

    @contextlib.contextmanager
    def _stop_on_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            for each in (self._file, self._events):
                if each is not None:
                    with contextlib.suppress(OSError):  # what is still in the buffers is lost
                        each.close()
            self._file = self._events = None
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


class _Events:
    """A TensorBoard event file, written with TensorBoard's own records and protocol buffers.

    Its EventFileWriter would import TensorFlow wherever that is installed, and writes in a thread.
    """

    def __init__(self, directory: pathlib.Path, purge_from: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        is_first = not any(directory.glob(f"{EVENTS}.*"))
        # TensorBoard reads a folder's files in the order of their names.
        self._file = (directory / f"{EVENTS}.{time.time_ns():020d}").open("xb")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        if purge_from is not None and not is_first:
            self._add(step=purge_from, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step=step, summary=self._summary(value=scalars))

    def close(self) -> None:
        self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()


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
