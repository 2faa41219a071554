"""Where a run's arrays live, and how a step's work is spread: on one device, or over a mesh of them.

The state is global arrays under ``jit``: parameters, optimizer state and g_v are cut over the axis ``fsdp``, and the
rules and the optimizer see them whole, so that norms and dot products are global without a word. Only what is done to
the images is written for one device, under ``shard_map``: there each device gathers the parameters once, works its
rows of the batch, in micro-batches if need be, and the gradient is reduced once, after them.

How a step's batch is cut: over devices, into groups that climb on their own, and into micro-batches.

The gradient of a step's whole batch, spread over devices and taken in micro-batches, for a rule to use.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from looksam.rules import Rule, SAMState, StepInfo, accumulated
from looksam.rules.batching import group_gradients, scanned_mean
from looksam.trainer.keys import per_image
from looksam.trainer.recipe import Recipe

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


class Parts(NamedTuple):
    microbatches: int  # worked one after another by each device
    groups: int | None  # on each device, of which each climbs its own gradient; None: the whole batch climbs as one
    group_microbatches: int = 1  # worked one after another in each group

    @classmethod
    def of(cls, recipe: Recipe, devices: int) -> "Parts":
        """The parts of a device. Raises ValueError where the batch does not divide."""
        batch, at_once = recipe.batch_size, recipe.microbatch or recipe.batch_size
        _divides("batch_size", batch, "the devices of the mesh", devices)
        _divides("batch_size", batch, "microbatch", at_once)
        _divides("microbatch", at_once, "the devices of the mesh", devices)
        rows = at_once // devices
        if recipe.mixup and rows % 2 and rows < batch:
            raise ValueError(
                f"each of {devices} devices works {rows} images at a time, and mixup takes pairs; "
                "pass a batch_size or microbatch that is an even number of images for each device."
            )
        if recipe.groups is None:
            return cls(batch // at_once, None)
        return cls(batch // at_once, *_groups(recipe, rows, devices))


def _groups(recipe: Recipe, rows: int, devices: int) -> tuple[int, int]:
    groups = devices if recipe.groups == "device" else int(recipe.groups or 1)
    _divides("batch_size", recipe.batch_size, "groups", groups)
    _divides("groups", groups, "the devices of the mesh", devices)
    images = recipe.batch_size // groups
    if recipe.mixup and images % 2:
        raise ValueError(f"groups={groups} have {images} images each, and mixup takes pairs; pass fewer groups.")
    if images > rows:
        _divides("the images of a group", images, "those of a micro-batch on one device", rows)
    return groups // devices, max(1, images // rows)


def _divides(name: str, whole: int, by: str, part: int) -> None:
    if whole % part:
        raise ValueError(f"{name}={whole} is no multiple of {by}, {part}; pass sizes that divide.")


# loss(params, mesh axes of the batch, shared, images, labels, keys) -> (mean loss, further means)
Loss = Callable[..., tuple[jax.Array, Any]]

BATCH = (1, 2, 3)  # images, labels and keys, after what is shared


class Gradient:
    """``gradient(params, shared, images, labels)`` gives ((loss, further means), gradient) of the batch."""

    def __init__(self, loss: Loss, layout: Layout, parts: Parts) -> None:
        self.layout, self.parts = layout, parts
        self._loss = loss
        self._whole = layout.work(self._worker, trees=1)

    def __call__(self, params: Any, *batch: Any) -> tuple[Any, Any]:
        value, (grads,) = self._whole(params, *batch)
        return value, grads

    def by(
        self, rule: Rule, params: Any, rule_state: Any, *batch: Any, refresh: bool | None
    ) -> tuple[Any, Any, Any, StepInfo]:
        """What ``rule.gradient`` returns. With groups, each group climbs its own gradient on a refresh step."""
        if self.parts.groups is None or refresh is False:
            return rule.gradient(self, params, rule_state, *batch, refresh=refresh)

        def worker(params: Any, both: Any, first: Any, images: Any, labels: Any) -> tuple[Any, Any]:
            shared, count = both
            of_group = accumulated(self._value_and_grad(()), self.parts.group_microbatches, BATCH)
            perturb = lambda g, params: rule.perturb(g, params, SAMState(count))
            gradients = group_gradients(of_group, perturb, self.parts.groups or 1, BATCH, mean=scanned_mean)
            keys = per_image(shared.model_key, images.shape[0], first)
            value, g, g_s = gradients(params, shared, images, labels, keys)
            return value, (g, g_s)

        shared, *rows = batch
        value, (g, g_s) = self.layout.work(worker, trees=2)(params, (shared, rule_state.count), *rows)
        return value, *rule.transform(g, lambda _: g_s, params, rule_state, refresh=True)

    def _worker(self, params: Any, shared: Any, first: Any, images: Any, labels: Any) -> tuple[Any, tuple[Any]]:
        keys = per_image(shared.model_key, images.shape[0], first)
        of = accumulated(self._value_and_grad(self.layout.axes), self.parts.microbatches, BATCH)
        value, grads = of(params, shared, images, labels, keys)
        return value, (grads,)

    def _value_and_grad(self, axes: tuple[str, ...]) -> Callable[..., tuple[Any, Any]]:
        """Of some rows; BatchNorm's statistics are taken over ``axes`` too."""
        return jax.value_and_grad(lambda params, *batch: self._loss(params, axes, *batch), has_aux=True)
