"""Checkpoints: sharded, written by Orbax asynchronously and atomically, and checked before they are used.

Every process writes its own shards of the state into the run's folder, which all of them see, and reads what its
devices need of them; none holds the whole state. A checkpoint is the same whatever mesh it was written from, so a run
resumes on any other number of devices and processes. ``checkpoint_files`` has the format.

Orbax's handler writes and reads the arrays. What is around it is our own: Orbax's manager cannot open a folder in which
one metrics file is damaged, and its checkpointers wait at barriers, minutes long, when one process fails to write.
Here the processes exchange how it went, and all of them report the failure of one.
"""

import asyncio
import contextlib
import functools
import gc
import json
import logging
import pathlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from looksam.trainer import distributed
from looksam.trainer.run_folder import checkpoint_files, checksum
from looksam.trainer.run_folder.checkpoint_files import STATE, Folder, Spec
from looksam.trainer.run_folder.run_directory import RunError

CheckpointChoice = Literal["last", "best"] | int  # the latest valid checkpoint, the best, or that of a step
# a checkpoint of a run: the latest valid one, the best, or that of a step
SLICE_BYTES = 2**20  # replicated arrays of at least that many bytes per replica are written in parts, one by each
T = TypeVar("T")


def to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


class Checkpoints:
    """The checkpoints of one run: the last ``keep``, and the one with the highest ``best_metric``.

    With several processes, each of them has to make the same calls.

    Args:
        directory: holds the checkpoints and nothing else, and is the same folder for all processes; created if need be.
        keep: how many of the newest are kept.
        best_metric: the name, in ``metrics``, of the number that is highest for the best one.
        read_only: leave the folder as it is; a run may be writing there.
        report: takes one line about what the user should know and what does not stop the run.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        keep: int,
        best_metric: str = "test_accuracy",
        read_only: bool = False,
        report: Callable[[str], None] = to_stderr,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} is out of range; keep at least 1 checkpoint.")
        self._folder = Folder(pathlib.Path(directory))
        self._keep, self._best_metric, self._read_only, self._report = keep, best_metric, read_only, report
        self._damaged: set[int] = set()
        self._failed, self._silence = False, contextlib.ExitStack()
        if not read_only:
            self._silence.enter_context(_orbax_silent())
        self._pending: tuple[int, Future[None]] | None = None
        self._exchange = distributed.Exchange()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writer_exchange = distributed.Exchange()  # one per thread, so that each counts its own rounds
        if not read_only and distributed.is_primary():
            self._open()
        self._exchange("")  # the others wait until the folder is there
        self._scores = {step: self._stored_score(step) for step in self._folder.steps()}

    def save(
        self,
        step: int,
        state: Any,
        meta: dict[str, Any],
        metrics: dict[str, float] | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Copies this process's shards of the state and returns; a thread writes the copy.

        The state may be donated right after. Waits first for an earlier save, and raises RunError if that failed.
        A step that was saved before is left as it is, unless it is to be saved ``again``.

        Args:
            step: not below any saved before.
            state: a pytree of arrays; typed PRNG keys are fine, Python numbers belong into meta.
            meta: what JSON can hold, and NaN and infinities; tuples come back as lists.
            metrics: numbers by which the best checkpoint is selected; those that are not finite do not count.
        """
        if self._read_only:
            raise RunError(f"the checkpoints in {self._folder.path} were opened for reading only; nothing was saved.")
        self.wait()
        latest = self._of_primary(self.latest_step())
        if latest == step and not again:
            return
        if latest is not None and latest > step:
            raise RunError(
                f"{self._folder.path} has a checkpoint of step {latest}, and step {step} comes before it; "
                "resume that run, or choose another folder."
            )
        content = {
            "step": step,
            "meta": checkpoint_files.plain_json(meta),
            "best_metric": self._best_metric,
            "metrics": checkpoint_files.finite(metrics),
        }
        copies, specs = checkpoint_files.snapshot(checkpoint_files.named_leaves(state))
        copied = threading.Event()
        self._pending = step, self._writer.submit(self._write, step, copies, {**content, "leaves": specs}, copied)
        copied.wait()

    def restore(self, like: Any, which: CheckpointChoice = "last") -> tuple[int, Any, dict[str, Any]] | None:
        """Returns the newest checkpoint that is whole, as (step, state, meta); None if there is none at all.

        Files are compared with their SHA-256, and arrays with their checksums. A checkpoint that cannot be read or does
        not match is reported, and the one before it is tried. Raises RunError if there are checkpoints and none is
        whole, or if a whole one holds other arrays than ``like``.

        Args:
            like: arrays or jax.ShapeDtypeStructs. NumPy arrays come back as such, others as jax.Arrays with the
                sharding of ``like``, or on the first device where it has none.
            which: "last", or that one only: "best", or a step. RunError if it is not there.
        """
        self.wait()
        tried: list[str] = []
        for step in self._of_primary(self._candidates(which)):
            try:
                state, meta = self._read(step, like)
            except RunError:
                raise
            except Exception as error:  # whatever a damaged file makes Orbax, TensorStore or JSON raise
                self._damaged.add(step)
                tried.append(f"step {step}: {_short(error)}")
                self._report(f"the checkpoint of step {step} in {self._folder.path} is damaged: {_short(error)}")
            else:
                if tried:
                    self._report(f"the checkpoint of step {step} is whole and is used instead")
                return step, state, meta
        if not tried:
            return None
        if which != "last":
            others = ", ".join(map(str, self._steps())) or "none"
            raise RunError(
                f"{self._folder.path}: {tried[0]}. Choose another checkpoint; the steps there are: {others}."
            )
        raise RunError(
            f"no checkpoint in {self._folder.path} can be used:\n  " + "\n  ".join(tried) + "\n"
            "Nothing was changed there. To begin again from step 0, choose another folder, or remove this one."
        )

    def latest_step(self) -> int | None:
        """Returns the newest step that is on disk and not known to be damaged."""
        return max(self._steps(), default=None)

    def best_step(self) -> int | None:
        """Returns the step with the highest ``best_metric``, the first of equals; None if none came with one."""
        scores = [(score, -step) for step in self._steps() if (score := self._scores.get(step)) is not None]
        return -max(scores)[1] if scores else None

    def wait(self) -> None:
        """Returns when everything is on disk. Raises RunError, once, if a write failed."""
        if self._pending is None:
            return
        step, future = self._pending
        try:
            future.result()
        except Exception as error:
            raise RunError(self._write_failed(step, error)) from error
        finally:
            if future.done():  # not so after a Ctrl-C while waiting
                self._pending = None

    def close(self) -> None:
        """Waits, and ends the writing thread. Raises RunError if the last write failed."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()
            if "_handler" in vars(self):
                self._handler.close()
            if self._failed:
                gc.collect()  # each task that failed logs a traceback when it is deleted: now, while that is dropped
            self._silence.close()

    @functools.cached_property
    def _handler(self) -> Any:
        """Orbax's handler, imported on first use: a new run takes its first steps before it needs one."""
        import orbax.checkpoint as ocp
        from orbax.checkpoint import type_handlers

        arrays = type_handlers.ArrayHandler(use_replica_parallel=True, min_slice_bytes_for_replica_parallel=SLICE_BYTES)
        return ocp.PyTreeCheckpointHandler(
            type_handler_registry=type_handlers.create_type_handler_registry(
                (np.ndarray, type_handlers.NumpyHandler()), (jax.Array, arrays)
            )
        )

    def _open(self) -> None:
        try:
            self._folder.create()
        except OSError as error:
            raise RunError(
                f"checkpoints cannot be written to {self._folder.path} ({_short(error)}). Nothing was started; "
                "choose a folder that you may write to, on a disk with space left."
            ) from error
        for step in self._folder.unfinished():
            self._report(f"removing the unfinished checkpoint of step {step}: its writing was interrupted")
        self._folder.clean_up()

    def _steps(self) -> list[int]:
        return [step for step in self._folder.steps() if step not in self._damaged]

    def _candidates(self, which: CheckpointChoice) -> list[int]:
        """Returns the steps to try, in this order."""
        steps = self._steps()
        if which == "last":
            return steps[::-1]
        step = self.best_step() if which == "best" else int(which)
        if step in steps:
            return [step]
        missing = f"checkpoint with a {self._best_metric}" if which == "best" else f"checkpoint of step {step}"
        there = ", ".join(map(str, steps)) or "none"
        raise RunError(f"{self._folder.path} has no {missing}; the steps there are: {there}.")

    def _write(self, step: int, copies: dict[str, Any], content: dict[str, Any], copied: threading.Event) -> None:
        """Writes a checkpoint, in the writing thread of each process."""
        agree, failure = self._writer_exchange, None
        try:
            _agreed(agree, lambda: self._make_room(step))
            self._damaged.clear()
            _agreed(agree, lambda: self._write_arrays(step, copies, copied))
            _agreed(agree, lambda: self._finish(step, content))
        except Exception as error:
            failure = OSError(_short(error))  # without the frames, which keep the tasks of Orbax alive
            self._failed = True
            if distributed.is_primary():
                self._folder.clean_up()  # room on a full disk
        finally:
            copied.set()
        if failure is not None:
            raise failure

    def _make_room(self, step: int) -> None:
        if distributed.is_primary():
            for damaged in self._damaged:
                self._folder.set_aside(damaged)
            (self._folder.unfinished_path(step) / STATE).mkdir(parents=True)

    def _write_arrays(self, step: int, copies: dict[str, Any], copied: threading.Event) -> None:
        from orbax.checkpoint.args import PyTreeSave

        filled = {name: array for name, array in copies.items() if array.size}  # Orbax refuses empty arrays
        path = self._folder.unfinished_path(step) / STATE
        writes = asyncio.run(self._handler.async_save(path, args=PyTreeSave(filled))) if filled else []
        copied.set()
        for write in writes or ():
            write.result()

    def _finish(self, step: int, content: dict[str, Any]) -> None:
        if distributed.is_primary():
            self._handler.finalize(self._folder.unfinished_path(step) / STATE)  # one index of all shards
            self._folder.finish(step, content)
            self._scores[step] = content["metrics"].get(self._best_metric)
            self._prune()

    def _prune(self) -> None:
        steps = self._steps()
        for step in steps:
            if step not in steps[-self._keep :] and step != self.best_step():
                self._folder.discard(step)

    def _read(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        part = slice(jax.process_index(), None, jax.process_count())
        _agreed(self._exchange, lambda: self._folder.check(step, part))
        content = self._folder.manifest(step)
        specs, leaves = content["leaves"], checkpoint_files.named_leaves(like)
        different = checkpoint_files.difference(
            specs, {name: checkpoint_files.spec_of(leaf) for name, leaf in leaves.items()}
        )
        if different:
            raise RunError(
                f"the checkpoint of step {step} in {self._folder.path} is of another model or optimizer: {different}. "
                "Nothing was changed there; use the settings it was written with, or choose another folder."
            )
        targets = {name: checkpoint_files.target(leaf) for name, leaf in leaves.items()}
        data = _agreed(self._exchange, lambda: self._read_arrays(step, targets))
        _check_arrays(data, specs)
        restored = [checkpoint_files.from_data(data[name], specs[name]) for name in leaves]
        return jax.tree.unflatten(jax.tree.structure(like), restored), content["meta"]

    def _read_arrays(self, step: int, targets: dict[str, Any]) -> dict[str, Any]:
        """Returns the arrays, of which each process reads the parts that its devices need."""
        from orbax.checkpoint.args import PyTreeRestore
        from orbax.checkpoint.checkpoint_utils import construct_restore_args

        filled = {name: target for name, target in targets.items() if target.size}
        restored = {}
        if filled:
            arguments = PyTreeRestore(item=filled, restore_args=construct_restore_args(filled))
            restored = self._handler.restore(self._folder.of(step) / STATE, args=arguments)
        return {
            name: restored[name] if target.size else checkpoint_files.empty(target) for name, target in targets.items()
        }

    def _stored_score(self, step: int) -> float | None:
        try:
            return self._folder.manifest(step)["metrics"].get(self._best_metric)
        except Exception:  # damaged or of another version: restore reports it if it comes to that
            return None

    def _of_primary(self, value: Any) -> Any:
        """Returns the first process's value, which JSON can hold: a shared disk may show each its own state."""
        return json.loads(self._exchange(json.dumps(value))[0])

    def _write_failed(self, step: int, error: Exception) -> str:
        latest = self.latest_step()
        safe = "No checkpoint is there yet" if latest is None else f"The checkpoint of step {latest} is safe"
        return (
            f"the checkpoint of step {step} could not be written to {self._folder.path} ({_short(error)}). "
            f"{safe}. Make room on the disk, or make the folder writable, and run the same command again to resume."
        )


def _agreed(exchange: distributed.Exchange, work: Callable[[], T]) -> T:
    """Returns what ``work`` does in this process, or raises in all processes what went wrong in any of them."""
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    messages = exchange("" if failure is None else _short(failure))
    if failure is not None:
        raise failure
    for index, message in enumerate(messages):
        if message:
            raise RuntimeError(f"process {index}: {message}")
    return result  # type: ignore[return-value]


def _check_arrays(data: dict[str, Any], specs: dict[str, Spec]) -> None:
    sums = {name: checksum.checksum(array) for name, array in data.items()}  # all under way before the first is read
    for name, value in sums.items():
        if checksum.as_text(value) != specs[name]["checksum"]:
            raise ValueError(f"'{name}' does not match its checksum")


@contextlib.contextmanager
def _orbax_silent() -> Iterator[None]:
    """Drops the tracebacks that each thread and task of Orbax logs of a failed write: the error is raised too."""

    def not_from_orbax(record: logging.LogRecord) -> bool:
        trace = record.exc_info[2] if record.exc_info else None
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
        return not any("orbax" in file for file in (record.pathname, *files))

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":  # TensorStore's tasks, after the first that failed
            before(unraisable)

    loggers, before = [logging.getLogger(name) for name in ("absl", "asyncio")], sys.unraisablehook
    for logger in loggers:
        logger.addFilter(not_from_orbax)
    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before
        for logger in loggers:
            logger.removeFilter(not_from_orbax)


def _short(error: BaseException) -> str:
    """Returns an error's first line; of a long one the end, where TensorStore says what went wrong."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 200 else "… " + line[-150:]
