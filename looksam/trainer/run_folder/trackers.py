"""Where a run's metrics go on request, in addition to ``metrics.jsonl``: TensorBoard and Weights & Biases.

Neither package is a dependency. ``check_installed`` reports one that is missing before any time is spent.
"""

import contextlib
import importlib
import importlib.util
import pathlib
import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol

from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import RunError, write_atomically

EVENTS = "events.out.tfevents"
RUN_ID = "wandb.id"


class Tracker(Protocol):
    """Shows the metrics of a run. ``write`` may raise OSError, which stops the run."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Takes numbers by name, such as "train/loss"."""

    def cut_back(self, step: int) -> None:
        """Is called before the first ``write``, with the step that the run starts from."""

    def close(self) -> None: ...


def check_installed(recipe: Recipe) -> None:
    """Raises ImportError where a tracker that the recipe asks for is not installed."""
    wanted = {"tensorboard": recipe.tensorboard, "wandb": recipe.wandb is not None}
    for name, is_wanted in wanted.items():
        if is_wanted and importlib.util.find_spec(name) is None:
            raise ImportError(f"--{name} needs {name}, which is not installed: pip install 'looksam[{name}]'")


def open_trackers(recipe: Recipe, directory: pathlib.Path) -> list[Tracker]:
    """Returns the trackers that a recipe asks for."""
    trackers: list[Tracker] = [TensorBoard(directory)] if recipe.tensorboard else []
    return trackers + ([WeightsAndBiases(recipe, directory)] if recipe.wandb else [])


class TensorBoard:
    """Event files in a run's folder, written with TensorBoard's own records and protocol buffers.

    Its EventFileWriter would import TensorFlow wherever that is installed, and writes in a thread. The package is
    imported with the first numbers, after the first step.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._file: Any = None
        self._purge_from: int | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._file is None:
            self._open()
        scalars = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step=step, summary=self._summary(value=scalars))

    def cut_back(self, step: int) -> None:
        self.close()
        self._purge_from = step + 1

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        is_first = not any(self._directory.glob(f"{EVENTS}.*"))
        # TensorBoard reads a folder's files in the order of their names.
        self._file = (self._directory / f"{EVENTS}.{time.time_ns():020d}").open("xb")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        if self._purge_from is not None and not is_first:
            self._add(step=self._purge_from, session_log=SessionLog(status=SessionLog.START))

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()


class WeightsAndBiases:
    """A run of Weights & Biases in the project ``recipe.wandb``, resumed when the run is.

    Its files are in the run's folder, and its own environment variables, such as ``WANDB_MODE=offline``, apply. Numbers
    are drawn over ``step``: after a crash, the steps since the last checkpoint are there twice.
    """

    def __init__(self, recipe: Recipe, directory: pathlib.Path) -> None:
        wandb = importlib.import_module("wandb")
        path = directory / RUN_ID
        name = path.read_text().strip() if path.exists() else secrets.token_hex(8)
        try:
            self._run = wandb.init(
                project=recipe.wandb,
                id=name,
                name=directory.absolute().name,
                dir=str(directory.absolute()),
                config=recipe.to_dict(),
                resume="allow",
            )
        except Exception as error:  # no account, no network: each with an error of its own
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RunError(
                f"Weights & Biases could not be started ({reason}). Nothing was trained; log in with `wandb login`, "
                "set WANDB_MODE=offline to keep its files in the run's folder, or leave --wandb out."
            ) from error
        write_atomically(path, name.encode())
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def cut_back(self, step: int) -> None:
        """Leaves what was sent: it cannot be taken back."""

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the run itself is over, and saved
            self._run.finish()
