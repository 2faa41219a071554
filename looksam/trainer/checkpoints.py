"""Checkpoints: written by Orbax beside the training, whole or not at all, and checked before they are used.

A checkpoint has two Orbax items: ``state``, the arrays by path, and ``manifest``, JSON with the caller's ``meta`` and
a SHA-256 for each array, taken before it was written. Orbax's own manager is not used: it cannot open a folder in
which one metrics file is damaged, and deletes so that a kill can leave half a checkpoint.

Checkpoints of a run of many processes: the first one writes and reads them, and hands on what it read.

So the folder need not be on a disk that all hosts see, and a checkpoint is the same whatever mesh made it: it goes on
with any other number of devices and processes.
"""

import contextlib
import functools
import logging
import pathlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

from looksam.trainer import checkpoint_files, distributed
from looksam.trainer.checkpoint_files import Folder
from looksam.trainer.run_directory import RunError


def to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


class Checkpoints:
    """The checkpoints of one run: the last ``keep``, and the one with the highest ``best_metric``.

    Args:
        directory: holds the checkpoints and nothing else; created if need be.
        keep: how many of the newest are kept.
        best_metric: the name, in ``metrics``, of the number that is highest for the best one.
        read_only: look, and leave the folder as it is; a run may be writing there.
        report: takes a line about what the user should know and what does not stop the run.
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
        self._pending: tuple[int, Future[None]] | None = None
        if not read_only:
            self._open()
        # of several processes only the first has this open, and must not wait for the others
        alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="one")
        processes = alone if jax.process_count() > 1 else ocp.options.MultiprocessingOptions()
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(multiprocessing_options=processes)
        )
        self._orbax = ocp.Checkpointer(handler, multiprocessing_options=processes)
        self._scores = {step: self._stored_score(step) for step in self._folder.steps()}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    def save(self, step: int, state: Any, meta: dict[str, Any], metrics: dict[str, float] | None = None) -> None:
        """Copies the state to the host and returns; a thread digests and writes the copy.

        The state may be donated right after. Waits first for an earlier save, and raises RunError if that failed.
        A step that was saved before is left as it is.

        Args:
            step: not below any saved before.
            state: a pytree of arrays; typed PRNG keys are fine, Python numbers belong into meta.
            meta: what JSON can hold, and NaN and infinities; tuples come back as lists.
            metrics: numbers by which the best checkpoint is found; those that are not finite do not count.
        """
        if self._read_only:
            raise RunError(f"the checkpoints in {self._folder.path} were opened for reading only; nothing was saved.")
        self.wait()
        latest = self.latest_step()
        if latest == step:
            return
        if latest is not None and latest > step:
            raise RunError(
                f"{self._folder.path} has a checkpoint of step {latest}, and step {step} comes before it; "
                "resume that run, or choose another folder."
            )
        content = {"step": step, "meta": checkpoint_files.plain_json(meta), "metrics": checkpoint_files.finite(metrics)}
        arrays, specs = checkpoint_files.to_host(checkpoint_files.named_leaves(state))
        self._pending = step, self._writer.submit(self._write, step, arrays, specs, content)

    def restore(self, like: Any, step: int | None = None) -> tuple[int, Any, dict[str, Any]] | None:
        """The newest checkpoint that is whole, as (step, state, meta); None if there is none at all.

        Every array is compared with its digest. A checkpoint that cannot be read or does not match is reported, and
        the one before it is tried. RunError if there are checkpoints and none is whole, or if a whole one holds other
        arrays than ``like``.

        Args:
            like: arrays or jax.ShapeDtypeStructs. NumPy arrays come back as such, others as jax.Arrays with the
                sharding of ``like``, or on the first device where it has none.
            step: this one only, e.g. ``best_step()``.
        """
        self.wait()
        tried: list[str] = []
        for candidate in [step] if step is not None else reversed(self._steps()):
            try:
                state, meta = self._read(candidate, like)
            except RunError:
                raise
            except Exception as error:  # whatever a damaged file makes Orbax, TensorStore or JSON raise
                self._damaged.add(candidate)
                tried.append(f"step {candidate}: {_short(error)}")
                self._report(f"the checkpoint of step {candidate} in {self._folder.path} is damaged: {_short(error)}")
            else:
                if tried:
                    self._report(f"the checkpoint of step {candidate} is whole and is used instead")
                return candidate, state, meta
        if tried:
            raise RunError(
                f"no checkpoint in {self._folder.path} can be used:\n  " + "\n  ".join(tried) + "\n"
                "Nothing was changed there. To begin again from step 0, choose another folder, or remove this one."
            )
        return None

    def latest_step(self) -> int | None:
        """The newest step that is on disk and not known to be damaged."""
        return max(self._steps(), default=None)

    def best_step(self) -> int | None:
        """The step with the highest ``best_metric``, the first of equals; None if none came with one."""
        scores = [(score, -step) for step in self._steps() if (score := self._scores.get(step)) is not None]
        return -max(scores)[1] if scores else None

    def wait(self) -> None:
        """Returns when everything is on disk. RunError, once, if a write failed."""
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
        """Waits, and ends the writing thread. RunError if the last write failed."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()
            self._orbax.close()

    def _open(self) -> None:
        try:
            self._folder.create()
        except OSError as error:
            raise RunError(
                f"checkpoints cannot be written to {self._folder.path} ({_short(error)}). Nothing was started; "
                "choose a folder that you may write to, on a disk with space left."
            ) from error
        for step in self._folder.unfinished():
            self._report(f"removing the unfinished checkpoint of step {step}: its writing was cut short")
        self._folder.clean_up()

    def _steps(self) -> list[int]:
        return [step for step in self._folder.steps() if step not in self._damaged]

    def _write(
        self, step: int, arrays: dict[str, np.ndarray], specs: dict[str, checkpoint_files.Spec], content: dict[str, Any]
    ) -> None:
        """In the writing thread."""
        for name, array in arrays.items():
            specs[name]["sha256"] = checkpoint_files.digest(array)
        sealed = checkpoint_files.seal({**content, "leaves": specs})
        filled = {name: array for name, array in arrays.items() if array.size}  # Orbax refuses empty arrays
        items = ocp.args.Composite(state=ocp.args.StandardSave(filled), manifest=ocp.args.JsonSave(sealed))
        for damaged in self._damaged:
            self._folder.set_aside(damaged)
        self._damaged.clear()
        try:
            with _orbax_silent():
                self._orbax.save(self._folder.unfinished_path(step), items)
            self._folder.finish(step)
        except Exception:
            self._folder.clean_up()  # room on a full disk
            raise
        self._scores[step] = content["metrics"].get(self._best_metric)
        self._prune()

    def _prune(self) -> None:
        steps = self._steps()
        for step in steps:
            if step not in steps[-self._keep :] and step != self.best_step():
                self._folder.discard(step)

    def _read(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        self._folder.check(step)
        content = self._read_manifest(step)
        specs, leaves = content["leaves"], checkpoint_files.named_leaves(like)
        found = checkpoint_files.difference(
            specs, {name: checkpoint_files.spec_of(leaf) for name, leaf in leaves.items()}
        )
        if found:
            raise RunError(
                f"the checkpoint of step {step} in {self._folder.path} is of another model or optimizer: {found}. "
                "Nothing was changed there; use the settings it was made with, or choose another folder."
            )
        data = self._read_arrays(step, {name: checkpoint_files.target(leaf) for name, leaf in leaves.items()})
        for name, array in data.items():
            if checkpoint_files.digest(np.asarray(array)) != specs[name]["sha256"]:
                raise ValueError(f"'{name}' does not match its SHA-256")
        restored = [checkpoint_files.from_data(data[name], specs[name]) for name in leaves]
        return jax.tree.unflatten(jax.tree.structure(like), restored), content["meta"]

    def _read_manifest(self, step: int) -> dict[str, Any]:
        items = ocp.args.Composite(manifest=ocp.args.JsonRestore())
        content = checkpoint_files.unseal(self._orbax.restore(self._folder.of(step), items).manifest)
        if content["step"] != step:
            raise ValueError(f"its manifest is of step {content['step']}")
        return content

    def _read_arrays(self, step: int, targets: dict[str, Any]) -> dict[str, Any]:
        filled = {name: target for name, target in targets.items() if target.size}
        items = ocp.args.Composite(state=ocp.args.StandardRestore(filled))
        restored = self._orbax.restore(self._folder.of(step), items).state
        return {
            name: restored[name] if target.size else checkpoint_files.empty(target) for name, target in targets.items()
        }

    def _stored_score(self, step: int) -> float | None:
        try:
            return self._read_manifest(step)["metrics"].get(self._best_metric)
        except Exception:  # damaged: restore says so if it comes to that
            return None

    def _write_failed(self, step: int, error: Exception) -> str:
        latest = self.latest_step()
        safe = "No checkpoint is there yet" if latest is None else f"The checkpoint of step {latest} is safe"
        return (
            f"the checkpoint of step {step} could not be written to {self._folder.path} ({_short(error)}). "
            f"{safe}. Make room on the disk, or make the folder writable, and run the same command again to go on."
        )


@contextlib.contextmanager
def _orbax_silent() -> Iterator[None]:
    """Orbax logs the traceback of a failed write from each of its threads, and raises it too; once is enough."""
    logger = logging.getLogger("absl")

    def not_from_orbax(record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    logger.addFilter(not_from_orbax)
    try:
        yield
    finally:
        logger.removeFilter(not_from_orbax)


def _short(error: BaseException) -> str:
    """The first line of an error. Of a long one the end: TensorStore says what it was doing, then what went wrong."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 200 else "… " + line[-150:]


NONE = -1


class SharedCheckpoints:
    """Like ``Checkpoints``; every process has to make the same calls."""

    def __init__(self, open_folder: Callable[[], Checkpoints]) -> None:
        self._folder = open_folder() if distributed.first() else None

    def save(self, step: int, state: Any, meta: dict[str, Any], metrics: dict[str, float] | None = None) -> None:
        whole = jax.tree.map(_to_host, state)
        if self._folder:
            self._folder.save(step, whole, meta, metrics)

    def restore(self, like: Any) -> tuple[int, Any, dict[str, Any]] | None:
        blank = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), like)
        found = self._folder.restore(blank) if self._folder else None
        step, state, meta = found or (NONE, blank, {})
        step, meta = distributed.handed_on_json([step, meta])
        if step == NONE:
            return None
        return (
            step,
            jax.tree.map(lambda array, leaf: _spread(distributed.handed_on(array), leaf.sharding), state, like),
            meta,
        )

    def wait(self) -> None:
        if self._folder:
            self._folder.wait()

    def close(self) -> None:
        if self._folder:
            self._folder.close()


def _to_host(array: jax.Array) -> np.ndarray:
    """The whole array; where it is cut over processes, whole on the devices too for as long as the copy takes."""
    if isinstance(array.sharding, NamedSharding) and not array.is_fully_replicated:
        array = _gather(array.sharding.mesh)(array)
    return np.asarray(array.addressable_data(0))


@functools.cache  # so that a shape compiles once, and not at every save
def _gather(mesh: jax.sharding.Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _spread(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
