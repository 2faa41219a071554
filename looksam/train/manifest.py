"""What a checkpoint says it holds: path, dtype, shape and SHA-256 of each leaf, under a seal of its own.

Leaves are arrays. A typed PRNG key is held as its key data, and becomes a key again when it is read.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

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
