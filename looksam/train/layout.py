"""Where a run's arrays live, and how a step's work is spread: on one device, or over a mesh of them.

The state is global arrays under ``jit``: parameters, optimizer state and g_v are cut over the axis ``fsdp``, and the
rules and the optimizer see them whole, so that norms and dot products are global without a word. Only what is done to
the images is written for one device, under ``shard_map``: there each device gathers the parameters once, works its
rows of the batch, in micro-batches if need be, and the gradient is reduced once, after them.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SMALLEST = 1024  # arrays of fewer numbers stay whole: to gather a bias costs more than to keep it

Tree = Any
# (parameters, what all devices share, number of the first row, *rows) -> (means, trees like the parameters)
Worker = Callable[..., tuple[Tree, tuple[Tree, ...]]]


class Layout(Protocol):
    devices: int
    axes: tuple[str, ...]  # mesh axes that a worker's rows are a part of
    everywhere: jax.sharding.Sharding | None  # of what every device has whole

    def work(self, worker: Worker, trees: int) -> Callable[..., tuple[Tree, tuple[Tree, ...]]]:
        """``worker`` on every device, as a function of (parameters, shared, *batch); the mean of what they return."""

    def each_row(self, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """``function(shared, first row, rows) -> rows`` on every device, as a function of (shared, batch)."""

    def place(self, tree: Tree) -> Tree:
        """The sharding of each array of a state."""

    def rows(self, count: int, take: Callable[[slice], np.ndarray]) -> jax.Array:
        """A batch of ``count`` rows; ``take(part)`` gives those that live in this process."""


class OneDevice:
    """Everything where JAX puts it."""

    devices = 1
    axes: tuple[str, ...] = ()
    everywhere: jax.sharding.Sharding | None = None

    def work(self, worker: Worker, trees: int) -> Callable[..., tuple[Tree, tuple[Tree, ...]]]:
        return lambda params, shared, *batch: worker(params, shared, 0, *batch)

    def each_row(self, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda shared, batch: function(shared, 0, batch)

    def place(self, tree: Tree) -> Tree:
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.tree.map(lambda _: device, tree)

    def rows(self, count: int, take: Callable[[slice], np.ndarray]) -> jax.Array:
        return jax.device_put(take(slice(0, count)))


class OnMesh:
    """Spread over a mesh with the axes ``data``, ``fsdp`` or both: the batch over all, the state over ``fsdp``."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.devices, self.axes = mesh, mesh.size, tuple(mesh.axis_names)
        self.batch = NamedSharding(mesh, P(self.axes))
        self.everywhere: jax.sharding.Sharding | None = NamedSharding(mesh, P())
        self._fsdp = mesh.shape.get("fsdp", 1)

    def spec(self, shape: tuple[int, ...]) -> P:
        """Which axis is cut over ``fsdp``: the longest that divides."""
        fits = [axis for axis, size in enumerate(shape) if size % self._fsdp == 0]
        if self._fsdp == 1 or not fits or np.prod(shape) < SMALLEST:
            return P()
        longest = max(fits, key=lambda axis: shape[axis])
        return P(*[None] * longest, "fsdp")

    def place(self, tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: NamedSharding(self.mesh, self.spec(leaf.shape)), tree)

    def rows(self, count: int, take: Callable[[slice], np.ndarray]) -> jax.Array:
        like = take(slice(0, 0))
        return jax.make_array_from_callback((count, *like.shape[1:]), self.batch, lambda at: take((at or ())[0]))

    def work(self, worker: Worker, trees: int) -> Callable[..., tuple[Tree, tuple[Tree, ...]]]:
        def work(params: Tree, shared: Tree, *batch: jax.Array) -> tuple[Tree, tuple[Tree, ...]]:
            specs = jax.tree.map(lambda leaf: self.spec(leaf.shape), params)

            def local(shards: Tree, shared: Tree, *rows: jax.Array) -> tuple[Tree, tuple[Tree, ...]]:
                whole = jax.tree.map(self._gathered, shards, specs)
                means, found = worker(whole, shared, self._first(rows[0]), *rows)
                means = jax.tree.map(lambda x: lax.pmean(x, self.axes), means)
                return means, tuple(jax.tree.map(self._reduced, tree, specs) for tree in found)

            return jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(specs, P(), *[self.batch.spec] * len(batch)),
                out_specs=(P(), (specs,) * trees),
            )(params, shared, *batch)

        return work

    def each_row(self, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def local(shared: Tree, rows: jax.Array) -> jax.Array:
            return function(shared, self._first(rows), rows)

        return jax.shard_map(local, mesh=self.mesh, in_specs=(P(), self.batch.spec), out_specs=self.batch.spec)

    def _first(self, rows: jax.Array) -> jax.Array:
        """The number, in the whole batch, of this device's first row."""
        return lax.axis_index(self.axes) * rows.shape[0]

    def _gathered(self, shard: jax.Array, spec: P) -> jax.Array:
        # As "varying", its gradient is this device's own. JAX would sum that of a shared parameter at every use.
        if not len(spec):
            return lax.pcast(shard, self.axes, to="varying")
        whole = lax.all_gather(shard, "fsdp", axis=len(spec) - 1, tiled=True)
        return lax.pcast(whole, "data", to="varying") if "data" in self.axes else whole

    def _reduced(self, x: jax.Array, spec: P) -> jax.Array:
        """The mean over all devices, each keeping its own part."""
        x = x / self.devices
        if not len(spec):
            return lax.psum(x, self.axes)
        part = lax.psum_scatter(x, "fsdp", scatter_dimension=len(spec) - 1, tiled=True)
        return lax.psum(part, "data") if "data" in self.axes else part


def make_layout(sizes: tuple[int, int] | None) -> Layout:
    """The layout of ``data`` × ``fsdp`` devices, or of all there are."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    data, fsdp = sizes or (len(devices), 1)
    wanted = data * fsdp
    if wanted > len(devices) or (wanted < len(devices) and jax.process_count() > 1):
        raise ValueError(
            f"the mesh data={data},fsdp={fsdp} has {wanted} devices, and there are {len(devices)} "
            f"in {jax.process_count()} processes; pass sizes with that product, or --mesh auto."
        )
    if wanted == 1:
        return OneDevice()
    axes = {name: size for name, size in (("data", data), ("fsdp", fsdp)) if size > 1}
    grid = np.array(devices[:wanted]).reshape(*axes.values())
    return OnMesh(Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes)))


def chosen(array: np.ndarray, rows: np.ndarray) -> Callable[[slice], np.ndarray]:
    """For ``Layout.rows``: the batch ``array[rows]``, of which only the parts that are asked for are copied."""
    return lambda part: array[rows[part]]


def local_rows(layout: Layout, rows: np.ndarray) -> jax.Array:
    """A batch of which each process has its own part, in the order of the processes."""
    first = jax.process_index() * len(rows)

    def take(part: slice) -> np.ndarray:
        start, stop, _ = part.indices(len(rows) * jax.process_count())
        return rows[max(start - first, 0) : max(stop - first, 0)]

    return layout.rows(len(rows) * jax.process_count(), take)
