"""Checkpoints of a run of many processes: the first one writes and reads them, and hands on what it read.

So the folder need not be on a disk that all hosts see, and a checkpoint is the same whatever mesh made it: it goes on
with any other number of devices and processes.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from looksam.train import processes
from looksam.train.checkpoint import Checkpoints

NONE = -1


class SharedCheckpoints:
    """Like ``Checkpoints``; every process has to make the same calls."""

    def __init__(self, open_folder: Callable[[], Checkpoints]) -> None:
        self._folder = open_folder() if processes.first() else None

    def save(self, step: int, state: Any, meta: dict[str, Any], metrics: dict[str, float] | None = None) -> None:
        whole = jax.tree.map(_to_host, state)
        if self._folder:
            self._folder.save(step, whole, meta, metrics)

    def restore(self, like: Any) -> tuple[int, Any, dict[str, Any]] | None:
        blank = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), like)
        found = self._folder.restore(blank) if self._folder else None
        step, state, meta = found or (NONE, blank, {})
        step, meta = processes.handed_on_json([step, meta])
        if step == NONE:
            return None
        return (
            step,
            jax.tree.map(lambda array, leaf: _spread(processes.handed_on(array), leaf.sharding), state, like),
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
