"""The format of a checkpoint: its folder, the list of its files, its manifest, and the leaves of the state in it.

    checkpoints/1200/     a finished checkpoint; any other name is on its way in or out
      state/              the arrays by path, written by Orbax, each process its own shards
      manifest.json       version, step, meta, metrics, and each leaf's dtype, shape and checksum; with a SHA-256
      files.json          the SHA-256 of every file above, written last

A checkpoint appears under its name by one rename, so a kill at any moment never leaves half of one there. Leaves are
arrays; a typed PRNG key is held as its key data, and becomes a key again when it is read.
"""

import hashlib
import json
import math
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.trainer.run_folder.checksum import as_text, checksum
from looksam.trainer.run_folder.run_directory import check_version

VERSION = 1
STATE, MANIFEST, FILES = "state", "manifest.json", "files.json"
UNFINISHED = ".unfinished"  # being written
DISCARDED = ".discarded"  # old, being deleted
DAMAGED = ".damaged"  # kept for inspection


class Folder:
    """The folder that holds the checkpoints of a run, each named by its step."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path.absolute()

    def of(self, step: int) -> pathlib.Path:
        return self.path / str(step)

    def steps(self) -> list[int]:
        """Returns the steps with a finished checkpoint, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(int(path.name) for path in self.path.iterdir() if path.name.isdecimal())

    def create(self) -> None:
        """Makes the folder and writes a byte into it. Raises OSError where that cannot be done."""
        self.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.path) as probe:
            probe.write(b"x")
            probe.flush()

    def unfinished(self) -> list[str]:
        """Returns the steps, as text, whose writing was interrupted."""
        return sorted({path.name.partition(".")[0] for path in self._marked(UNFINISHED)})

    def unfinished_path(self, step: int) -> pathlib.Path:
        """Returns where the checkpoint of a step is written until ``finish``."""
        return self.path / f"{step}{UNFINISHED}"

    def finish(self, step: int, content: dict[str, Any]) -> None:
        """Adds the manifest and the list of files, and puts the checkpoint in its place by one rename."""
        written = self.unfinished_path(step)
        leaves = {name: spec | {"checksum": as_text(spec["checksum"])} for name, spec in content["leaves"].items()}
        content = content | {"leaves": leaves}
        sealed = {"version": VERSION, "sha256": _json_digest(content), "content": content}
        (written / MANIFEST).write_text(json.dumps(sealed, indent=1))
        (written / FILES).write_text(json.dumps(_digests(written, _files(written)), indent=1))
        self._move(step, DISCARDED)  # one that was saved before
        written.rename(self.of(step))

    def check(self, step: int, part: slice = slice(None)) -> None:
        """Raises ValueError, with the name, where a file is not as it was written; nothing is parsed before this.

        Args:
            step: of the checkpoint.
            part: the files to read, where several processes share the work.
        """
        listed = json.loads((self.of(step) / FILES).read_bytes())
        present = _files(self.of(step))
        for name in listed:
            if name not in present:
                raise ValueError(f"its file {name} is missing")
        for name, digest in _digests(self.of(step), sorted(listed)[part]).items():
            if digest != listed[name]:
                raise ValueError(f"its file {name} does not match its SHA-256")

    def manifest(self, step: int) -> dict[str, Any]:
        """Returns the manifest's content. Raises ValueError where it is damaged, RunError for another version."""
        path = self.of(step) / MANIFEST
        sealed = json.loads(path.read_bytes()) if path.exists() else {}
        check_version(
            f"the checkpoint of step {step} in {self.path}", sealed.get("version"), VERSION, "start in a new folder"
        )
        content = sealed["content"]
        if sealed["sha256"] != _json_digest(content):
            raise ValueError("its manifest does not match its SHA-256")
        if content["step"] != step:
            raise ValueError(f"its manifest is of step {content['step']}")
        return content

    def clean_up(self) -> None:
        for path in self._marked(UNFINISHED) + self._marked(DISCARDED):
            shutil.rmtree(path, ignore_errors=True)

    def discard(self, step: int) -> None:
        self._move(step, DISCARDED)
        self.clean_up()

    def set_aside(self, step: int) -> None:
        """Frees the name of a damaged checkpoint for a good one of the same step."""
        self._move(step, DAMAGED)

    def _move(self, step: int, mark: str) -> None:
        source = self.of(step)
        target = source.with_name(source.name + mark)
        shutil.rmtree(target, ignore_errors=True)
        if source.exists():
            source.rename(target)

    def _marked(self, mark: str) -> list[pathlib.Path]:
        return [path for path in self.path.iterdir() if mark in path.name]


def _files(directory: pathlib.Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def _digests(directory: pathlib.Path, names: list[str]) -> dict[str, str]:
    digests = {}
    for name in names:
        with (directory / name).open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _json_digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def plain_json(meta: Any) -> Any:
    """Returns meta as JSON gives it back. Raises TypeError or ValueError where JSON cannot hold it."""
    try:
        return json.loads(json.dumps(meta))
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"meta cannot be written as JSON: {error}; pass plain dicts, lists, strings and numbers."
        ) from None


def finite(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the metrics that are finite numbers."""
    numbers = {name: float(value) for name, value in (metrics or {}).items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


Spec = dict[str, Any]  # a leaf's dtype, shape, checksum, and (keys only) impl


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by path, such as ``"params/dense/kernel"``, in the tree's own order."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in named:
            raise ValueError(f"two leaves of the state are called '{name}'; give one of them another name.")
        named[name] = leaf
    return named


def is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def snapshot(leaves: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Spec]]:
    """Returns copies that outlive a donation of the leaves, sharded as they are, and what the leaves are.

    Checksums are still being computed on the devices; ``finish`` waits for them. On an accelerator the leaves
    themselves are returned: Orbax copies them to the host before they can be donated.
    """
    for name, leaf in leaves.items():
        _check_leaf(name, leaf)
    specs = {name: spec_of(leaf) for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        if is_key(leaf):
            specs[name]["impl"] = str(jax.random.key_impl(leaf))
    stored = {name: jax.random.key_data(leaf) if is_key(leaf) else leaf for name, leaf in leaves.items()}
    copies = {name: _copy(leaf) for name, leaf in stored.items()}
    for name, leaf in copies.items():
        specs[name]["checksum"] = checksum(leaf)
    return copies, specs


def _copy(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return np.array(leaf)
    device: Any = next(iter(leaf.sharding.device_set))
    # On the CPU, Orbax would write from the device's own memory, which the next step reuses.
    return jnp.copy(leaf) if device.platform == "cpu" else leaf


def _check_leaf(name: str, leaf: Any) -> None:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise TypeError(f"'{name}' of the state is a {type(leaf).__name__}, not an array; keep it in meta.")
    if not is_key(leaf) and np.dtype(leaf.dtype).hasobject:
        raise TypeError(f"'{name}' of the state holds Python objects, not numbers; keep it in meta.")
    if isinstance(leaf, jax.Array) and leaf.is_fully_addressable and jax.process_count() > 1:
        raise TypeError(f"'{name}' of the state is in one process only; make it a global array.")


def spec_of(leaf: Any) -> Spec:
    """Returns dtype and shape of an array or a jax.ShapeDtypeStruct."""
    return {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}


def difference(saved: Mapping[str, Spec], wanted: Mapping[str, Spec]) -> str | None:
    """Returns the first leaf in which two states differ, as a sentence; None where they are alike."""
    for name in [*wanted, *saved]:
        if name not in saved:
            return f"'{name}' ({_words(wanted[name])}) is not in the checkpoint"
        if name not in wanted:
            return f"'{name}' ({_words(saved[name])}) is in the checkpoint, and this run has no such thing"
        if _words(saved[name]) != _words(wanted[name]):
            return f"'{name}' is {_words(saved[name])} in the checkpoint, and {_words(wanted[name])} in this run"
    return None


def _words(spec: Spec) -> str:
    return f"{spec['dtype']}{list(spec['shape'])}"


def target(leaf: Any) -> Any:
    """Returns what Orbax should restore a leaf as: a NumPy array, or a jax.Array with the leaf's sharding."""
    if isinstance(leaf, np.ndarray | np.generic):
        return np.asarray(leaf)
    data = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)


def empty(wanted: Any) -> Any:
    """Returns the array for a target of size 0."""
    array = np.zeros(wanted.shape, wanted.dtype)
    if isinstance(wanted, np.ndarray):
        return array
    return jax.make_array_from_callback(wanted.shape, wanted.sharding, lambda index: array[index])


def from_data(data: Any, spec: Spec) -> Any:
    """Returns a leaf from what was stored of it."""
    return jax.random.wrap_key_data(data, impl=spec["impl"]) if "impl" in spec else data
