"""The device layout of a run, how a batch is split over it, and the gradient of a whole batch.

``step.py`` describes a step as if there were one device. This module makes it true on many: the batch is split over
devices, groups and micro-batches, and its gradient is put together again before the rule and the optimizer see it.

The state consists of global arrays under ``jit``. Parameters, optimizer state and what the rule keeps are sharded over
the mesh axis ``fsdp``, and rules and optimizers treat them as whole arrays, so that their norms and dot products are
global. Only the work on images is written per device, under ``shard_map``: each device gathers the parameters once,
processes its rows of the batch (in micro-batches if asked to), and the gradient is reduced once, afterwards.
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

MIN_SHARDED_SIZE = 1024  # smaller arrays are replicated: gathering a bias costs more than keeping it

Tree = Any
# function(params, context, first_row, *rows) -> (means, trees like params), on the rows of one device.
# ``context`` is the same on all devices, and ``first_row`` is the position of the device's rows in the batch.
DeviceFunction = Callable[..., tuple[Tree, tuple[Tree, ...]]]


# --- device layouts -----------------------------------------------------------------------------------------------


class Layout(Protocol):
    """Where the arrays of a run live, and how a function is run on every device."""

    devices: int
    axes: tuple[str, ...]  # mesh axes over which the batch is split
    replicated: jax.sharding.Sharding | None  # of arrays that every device holds in full

    def shardings(self, tree: Tree) -> Tree:
        """The sharding of each array of a state."""

    def put_batch(self, count: int, take: Callable[[slice], np.ndarray]) -> jax.Array:
        """A batch of ``count`` rows on the devices; ``take(rows)`` returns some of them, and only local ones."""

    def map_rows(self, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """Run ``function(context, first_row, rows) -> rows`` on every device, as ``mapped(context, batch)``."""

    def mean_over_devices(
        self, function: DeviceFunction, gradients: int
    ) -> Callable[..., tuple[Tree, tuple[Tree, ...]]]:
        """Run ``function`` on every device, as ``mean(params, context, *batch)``, and average what it returns.

        ``gradients`` is the number of trees like ``params`` that it returns.
        """


class SingleDeviceLayout:
    """Everything on one device."""

    devices = 1
    axes: tuple[str, ...] = ()
    replicated: jax.sharding.Sharding | None = None

    def shardings(self, tree: Tree) -> Tree:
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.tree.map(lambda _: device, tree)

    def put_batch(self, count: int, take: Callable[[slice], np.ndarray]) -> jax.Array:
        return jax.device_put(take(slice(0, count)))

    def map_rows(self, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda context, batch: function(context, 0, batch)

    def mean_over_devices(
        self, function: DeviceFunction, gradients: int
    ) -> Callable[..., tuple[Tree, tuple[Tree, ...]]]:
        return lambda params, context, *batch: function(params, context, 0, *batch)


class MeshLayout:
    """A mesh with the axes ``data``, ``fsdp`` or both: the batch is split over all, the state over ``fsdp``."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.devices, self.axes = mesh, mesh.size, tuple(mesh.axis_names)
        self.batch_sharding = NamedSharding(mesh, P(self.axes))
        self.replicated: jax.sharding.Sharding | None = NamedSharding(mesh, P())
        self._fsdp = mesh.shape.get("fsdp", 1)

    def spec(self, shape: tuple[int, ...]) -> P:
        """How an array of the state is sharded: over ``fsdp``, along the longest axis that divides."""
        dividing = [axis for axis, size in enumerate(shape) if size % self._fsdp == 0]
        if self._fsdp == 1 or not dividing or np.prod(shape) < MIN_SHARDED_SIZE:
            return P()
        longest = max(dividing, key=lambda axis: shape[axis])
        return P(*[None] * longest, "fsdp")

    def shardings(self, tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: NamedSharding(self.mesh, self.spec(leaf.shape)), tree)

    def put_batch(self, count: int, take: Callable[[slice], np.ndarray]) -> jax.Array:
        shape = count, *take(slice(0, 0)).shape[1:]
        return jax.make_array_from_callback(shape, self.batch_sharding, lambda index: take((index or ())[0]))

    def map_rows(self, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def on_device(context: Tree, rows: jax.Array) -> jax.Array:
            return function(context, self._first_row(rows), rows)

        rows = self.batch_sharding.spec
        return jax.shard_map(on_device, mesh=self.mesh, in_specs=(P(), rows), out_specs=rows)

    def mean_over_devices(
        self, function: DeviceFunction, gradients: int
    ) -> Callable[..., tuple[Tree, tuple[Tree, ...]]]:
        def mean(params: Tree, context: Tree, *batch: jax.Array) -> tuple[Tree, tuple[Tree, ...]]:
            specs = jax.tree.map(lambda leaf: self.spec(leaf.shape), params)

            def on_device(shards: Tree, context: Tree, *rows: jax.Array) -> tuple[Tree, tuple[Tree, ...]]:
                whole = jax.tree.map(self._gather, shards, specs)
                means, trees = function(whole, context, self._first_row(rows[0]), *rows)
                means = jax.tree.map(lambda x: lax.pmean(x, self.axes), means)
                return means, tuple(jax.tree.map(self._reduce, tree, specs) for tree in trees)

            return jax.shard_map(
                on_device,
                mesh=self.mesh,
                in_specs=(specs, P(), *[self.batch_sharding.spec] * len(batch)),
                out_specs=(P(), (specs,) * gradients),
            )(params, context, *batch)

        return mean

    def _first_row(self, rows: jax.Array) -> jax.Array:
        """The position of this device's first row in the whole batch."""
        return lax.axis_index(self.axes) * rows.shape[0]

    def _gather(self, shard: jax.Array, spec: P) -> jax.Array:
        """The whole parameter, marked as varying so that its gradient is this device's own.

        The gradient of a replicated parameter would be summed over the devices at every use.
        """
        if not len(spec):
            return lax.pcast(shard, self.axes, to="varying")
        whole = lax.all_gather(shard, "fsdp", axis=len(spec) - 1, tiled=True)
        return lax.pcast(whole, "data", to="varying") if "data" in self.axes else whole

    def _reduce(self, x: jax.Array, spec: P) -> jax.Array:
        """The mean over all devices, of which each keeps its own shard."""
        x = x / self.devices
        if not len(spec):
            return lax.psum(x, self.axes)
        shard = lax.psum_scatter(x, "fsdp", scatter_dimension=len(spec) - 1, tiled=True)
        return lax.psum(shard, "data") if "data" in self.axes else shard


def make_layout(sizes: tuple[int, int] | None) -> Layout:
    """The layout of ``data`` × ``fsdp`` devices; None for all available devices on ``data``."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    data, fsdp = sizes or (len(devices), 1)
    wanted = data * fsdp
    if wanted > len(devices) or (wanted < len(devices) and jax.process_count() > 1):
        raise ValueError(
            f"the mesh data={data},fsdp={fsdp} has {wanted} devices, and there are {len(devices)} "
            f"in {jax.process_count()} processes; pass sizes with that product, or --mesh auto."
        )
    if wanted == 1:
        return SingleDeviceLayout()
    axes = {name: size for name, size in (("data", data), ("fsdp", fsdp)) if size > 1}
    grid = np.array(devices[:wanted]).reshape(*axes.values())
    return MeshLayout(Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes)))


# --- micro-batches and groups -------------------------------------------------------------------------------------


class BatchSplit(NamedTuple):
    """How each device splits its rows of the batch."""

    microbatches: int  # processed one after another
    groups: int | None  # perturbed separately (m-sharpness); None to perturb with the gradient of the whole batch
    group_microbatches: int = 1  # processed one after another within each group

    @classmethod
    def of(cls, recipe: Recipe, devices: int) -> "BatchSplit":
        """The split that a recipe asks for. Raises ValueError if the batch does not divide evenly."""
        batch, microbatch = recipe.batch_size, recipe.microbatch or recipe.batch_size
        mesh = f"the {devices} devices of the mesh"
        _check_multiple(f"batch_size={batch}", batch, mesh, devices)
        _check_multiple(f"batch_size={batch}", batch, f"microbatch={microbatch}", microbatch)
        _check_multiple(f"microbatch={microbatch}", microbatch, mesh, devices)
        rows = microbatch // devices
        if recipe.mixup and rows % 2 and rows < batch:
            raise ValueError(
                f"each of {devices} devices processes {rows} images at a time, and mixup takes pairs; "
                "pass a batch_size or microbatch that is an even number of images per device."
            )
        if recipe.groups is None:
            return cls(batch // microbatch, None)
        return cls(batch // microbatch, *_groups(recipe, rows, devices))


def _groups(recipe: Recipe, rows: int, devices: int) -> tuple[int, int]:
    """The groups of each device, and the micro-batches of each group."""
    groups = devices if recipe.groups == "device" else int(recipe.groups or 1)
    _check_multiple(f"batch_size={recipe.batch_size}", recipe.batch_size, f"groups={groups}", groups)
    _check_multiple(f"groups={groups}", groups, f"the {devices} devices of the mesh", devices)
    images = recipe.batch_size // groups
    if recipe.mixup and images % 2:
        raise ValueError(f"groups={groups} have {images} images each, and mixup takes pairs; pass fewer groups.")
    if images > rows:
        each = f"the {rows} images that a device processes at a time"
        _check_multiple(f"the group size of {images} images", images, each, rows)
    return groups // devices, max(1, images // rows)


def _check_multiple(what: str, count: int, of: str, divisor: int) -> None:
    if count % divisor:
        raise ValueError(f"{what} is not a multiple of {of}; pass sizes that divide evenly.")


# --- the gradient of a batch --------------------------------------------------------------------------------------

# loss(params, mesh axes of the batch, context, images, labels, keys) -> (mean loss, further means)
Loss = Callable[..., tuple[jax.Array, Any]]

BATCH = (1, 2, 3)  # positions of images, labels and keys among the loss's arguments; the context comes before them


class Gradient:
    """The gradient of a whole batch: ``gradient(params, context, images, labels)``.

    Returns ((loss, further means), gradient), like ``jax.value_and_grad``, so that a rule can call it. Each image gets
    a key of its own, from ``context.model_key``.
    """

    def __init__(self, loss: Loss, layout: Layout, split: BatchSplit) -> None:
        self.layout, self.split = layout, split
        self._loss = loss
        self._over_devices = layout.mean_over_devices(self._on_device, gradients=1)

    def __call__(self, params: Any, *batch: Any) -> tuple[Any, Any]:
        value, (grads,) = self._over_devices(params, *batch)
        return value, grads

    def with_rule(
        self, rule: Rule, params: Any, rule_state: Any, *batch: Any, refresh: bool | None
    ) -> tuple[Any, Any, Any, StepInfo]:
        """What ``rule.gradient`` returns. With groups, a refresh step perturbs each group by its own gradient."""
        if self.split.groups is None or refresh is False:
            return rule.gradient(self, params, rule_state, *batch, refresh=refresh)

        def on_device(params: Any, both: Any, first_row: Any, images: Any, labels: Any) -> tuple[Any, Any]:
            context, count = both
            value_and_grad = accumulated(self._value_and_grad(()), self.split.group_microbatches, BATCH)
            perturb = lambda g, params: rule.perturb(g, params, SAMState(count))
            gradients = group_gradients(value_and_grad, perturb, self.split.groups or 1, BATCH, mean=scanned_mean)
            keys = per_image(context.model_key, images.shape[0], first_row)
            value, g, g_s = gradients(params, context, images, labels, keys)
            return value, (g, g_s)

        context, *rows = batch
        over_devices = self.layout.mean_over_devices(on_device, gradients=2)
        value, (g, g_s) = over_devices(params, (context, rule_state.count), *rows)
        return value, *rule.transform(g, lambda _: g_s, params, rule_state, refresh=True)

    def _on_device(self, params: Any, context: Any, first_row: Any, images: Any, labels: Any) -> tuple[Any, tuple[Any]]:
        keys = per_image(context.model_key, images.shape[0], first_row)
        value_and_grad = accumulated(self._value_and_grad(self.layout.axes), self.split.microbatches, BATCH)
        value, grads = value_and_grad(params, context, images, labels, keys)
        return value, (grads,)

    def _value_and_grad(self, axes: tuple[str, ...]) -> Callable[..., tuple[Any, Any]]:
        """The loss and gradient of one device's rows; BatchNorm's statistics are also taken over ``axes``."""
        return jax.value_and_grad(lambda params, *batch: self._loss(params, axes, *batch), has_aux=True)
