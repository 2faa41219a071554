"""The folder that holds a run's checkpoints: how they come in, are checked, and leave.

A finished checkpoint is a folder named by its step, with a list of its files and their SHA-256. Every other name is on
its way in or out, so that a kill at any moment never leaves half a checkpoint under a finished one's name.

What a checkpoint says it holds: path, dtype, shape and SHA-256 of each leaf, under a seal of its own.

Leaves are arrays. A typed PRNG key is held as its key data, and becomes a key again when it is read.
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
import numpy as np

FILES = "files.json"
UNFINISHED = ".unfinished"  # being written
DISCARDED = ".discarded"  # old ones, being deleted
DAMAGED = ".damaged"  # kept for whoever wants to look


class Folder:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path.absolute()

    def of(self, step: int) -> pathlib.Path:
        return self.path / str(step)

    def steps(self) -> list[int]:
        """Steps with a finished checkpoint, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(int(path.name) for path in self.path.iterdir() if path.name.isdecimal())

    def create(self) -> None:
        """Makes the folder and writes a byte into it. OSError where that cannot be done."""
        self.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.path) as probe:
            probe.write(b"x")
            probe.flush()

    def unfinished(self) -> list[str]:
        """The steps, as text, whose writing was cut short."""
        return sorted({path.name.partition(".")[0] for path in self._marked(UNFINISHED)})

    def unfinished_path(self, step: int) -> pathlib.Path:
        """Where the checkpoint of a step is written, until ``finish``."""
        return self.path / f"{step}{UNFINISHED}"

    def finish(self, step: int) -> None:
        """Lists the files that were written, and puts the checkpoint in its place, in one rename."""
        written = self.unfinished_path(step)
        (written / FILES).write_text(json.dumps(_digests(written), indent=1))
        written.rename(self.of(step))

    def check(self, step: int) -> None:
        """ValueError, with the name, where a file is not as it was written. Nothing is parsed before this."""
        listed = json.loads((self.of(step) / FILES).read_bytes())
        found = _digests(self.of(step))
        for name in listed:
            if name not in found:
                raise ValueError(f"its file {name} is missing")
            if found[name] != listed[name]:
                raise ValueError(f"its file {name} does not match its SHA-256")

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


def _digests(directory: pathlib.Path) -> dict[str, str]:
    found = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


Spec = dict[str, Any]  # a leaf's dtype, shape, and (keys only) impl


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path, ``"params/dense/kernel"``, in the tree's own order."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in named:
            raise ValueError(f"two leaves of the state are called '{name}'; give one of them another name.")
        named[name] = leaf
    return named


def is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def spec_of(leaf: Any) -> Spec:
    """Dtype and shape of an array or a jax.ShapeDtypeStruct."""
    return {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}


def target(leaf: Any) -> Any:
    """What Orbax shall restore a leaf as: a NumPy array, or a jax.Array with the leaf's sharding."""
    if isinstance(leaf, np.ndarray | np.generic):
        return np.asarray(leaf)
    data = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)


def empty(wanted: Any) -> Any:
    """The array for a target of size 0."""
    array = np.zeros(wanted.shape, wanted.dtype)
    return array if isinstance(wanted, np.ndarray) else jax.device_put(array, wanted.sharding)


def to_host(leaves: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Spec]]:
    """Copies that live on after the leaves are donated, and what they are."""
    for name, leaf in leaves.items():
        _check_leaf(name, leaf)
    stored = {name: jax.random.key_data(leaf) if is_key(leaf) else leaf for name, leaf in leaves.items()}
    for leaf in stored.values():
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()  # all transfers at once, before the first is waited for
    specs = {name: spec_of(leaf) for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        if is_key(leaf):
            specs[name]["impl"] = str(jax.random.key_impl(leaf))
    # Without the copy, NumPy would only look at the device's own memory where that is the host's.
    return {name: np.array(leaf, order="C", copy=True) for name, leaf in stored.items()}, specs


def from_data(data: Any, spec: Spec) -> Any:
    """A leaf from what was stored of it."""
    return jax.random.wrap_key_data(data, impl=spec["impl"]) if "impl" in spec else data


def digest(array: np.ndarray) -> str:
    """SHA-256 of dtype, shape and bytes."""
    found = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def difference(saved: Mapping[str, Spec], wanted: Mapping[str, Spec]) -> str | None:
    """The first leaf in which two states differ, as a sentence; None where they are alike."""
    for name in [*wanted, *saved]:
        if name not in saved:
            return f"'{name}' ({_words(wanted[name])}) is not in the checkpoint"
        if name not in wanted:
            return f"'{name}' ({_words(saved[name])}) is in the checkpoint, and this run has no such thing"
        if _words(saved[name]) != _words(wanted[name]):
            return f"'{name}' is {_words(saved[name])} in the checkpoint, and {_words(wanted[name])} in this run"
    return None


def seal(content: dict[str, Any]) -> dict[str, Any]:
    return {"sha256": _json_digest(content), "content": content}


def unseal(sealed: Mapping[str, Any]) -> dict[str, Any]:
    content = sealed["content"]
    if sealed["sha256"] != _json_digest(content):
        raise ValueError("its manifest does not match its SHA-256")
    return content


def plain_json(meta: Any) -> Any:
    """Meta as JSON gives it back. TypeError or ValueError where JSON cannot hold it."""
    try:
        return json.loads(json.dumps(meta))
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"meta cannot be written as JSON: {error}; pass plain dicts, lists, texts and numbers."
        ) from None


def finite(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    numbers = {name: float(value) for name, value in (metrics or {}).items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _check_leaf(name: str, leaf: Any) -> None:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        raise TypeError(f"'{name}' of the state is a {type(leaf).__name__}, not an array; keep it in meta.")
    if not is_key(leaf) and np.dtype(leaf.dtype).hasobject:
        raise TypeError(f"'{name}' of the state holds Python objects, not numbers; keep it in meta.")
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        # Many processes: each would copy and digest only its own shards, and Orbax would take the jax.Array itself.
        raise NotImplementedError(f"'{name}' of the state is spread over several processes; save from one process.")


def _json_digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _words(spec: Spec) -> str:
    return f"{spec['dtype']}{list(spec['shape'])}"
