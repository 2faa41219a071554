"""Count the FLOPs and the collectives of a program by walking its jaxpr.

FLOPs are those of matrix products and convolutions. A product of (M, K) by (K, N) counts 2·M·N·K: a multiplication and
an addition for each of its terms. A convolution counts 2 for each pair of a weight and an input element that meet;
padding, and the holes that a stride leaves in the gradient of the input, are not computed with and not counted.
Everything else (sums, activations, norms, the optimizer) is not counted either: its time is that of reading and writing
memory. That includes a dot product of two vectors and a product with K = 1, which compilers turn into multiplications
and sums.

Dead code is removed first. What is inside a ``scan`` counts as often as it runs, and of the branches of a ``cond`` the
one with the most FLOPs. Under ``shard_map`` shapes are those of one device.

Only collectives that the program asks for are seen here. Those that the compiler adds for arrays which ``jit`` sees
whole and devices hold in parts (for norms of parameters on an ``fsdp`` axis) are not; a test compares the two.
"""

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.interpreters.partial_eval import dce_jaxpr

from looksam.trainer.plan.program import Collective, Cost, Memory

# The primitives in which no product of matrices can hide. What is neither here nor counted is named in a plan, so that
# nothing new is taken for free.
_NAMES = """
abs acos acosh add add_any and approx_top_k argmax argmin asin asinh atan atan2 atanh axis_index bessel_i0e bessel_i1e
bitcast_convert_type broadcast_in_dim cbrt ceil clamp clz complex concatenate conj convert_element_type copy copy_p cos
cosh cumlogsumexp cummax cummin cumprod cumsum device_put digamma div dynamic_slice dynamic_update_slice empty empty2
eq eq_to erf erf_inv erfc exp exp2 expm1 floor gather ge gt igamma igamma_grad_a igammac imag integer_pow iota
is_finite layout_constraint le le_to lgamma log log1p logistic lt lt_to max mesh_cast min mul name ne neg nextafter not
optimization_barrier or pad pcast polygamma population_count pow pvary random_bits random_clone random_fold_in
random_gamma random_seed random_split random_unwrap random_wrap real reduce reduce_and reduce_max reduce_min reduce_or
reduce_precision reduce_prod reduce_sum reduce_window reduce_window_max reduce_window_min reduce_window_sum reduce_xor
regularized_incomplete_beta rem reshape reshard rev rng_bit_generator rng_uniform round rsqrt scatter scatter-add
scatter-max scatter-min scatter-mul scatter-sub scatter_add scatter_max scatter_min scatter_mul scatter_sub
select_and_gather_add select_and_scatter select_and_scatter_add select_n sharding_constraint shift_left
shift_right_arithmetic shift_right_logical sign sin sinh slice sort split sqrt square squeeze stack stop_gradient sub
tan tanh threefry2x32 tile top_k transpose xor zeta
"""
WITHOUT_PRODUCTS = frozenset(_NAMES.split())

# Primitives that run the jaxpr they hold once, on their own operands.
_CALLS = "jit pjit closed_call core_call call checkpoint remat remat2 custom_jvp_call custom_vjp_call shard_map"
CALLS = frozenset(_CALLS.split())

# The kinds of collectives, by the name of the primitive. A kind has several, by how JAX tracks what varies.
COLLECTIVES = {
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin"), "all-reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant"), "all-gather"),
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
    "pbroadcast": "collective-broadcast",
}
WINDOW = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")  # parameters of a convolution, for each axis


def cost(traced: jax.stages.Traced, compiled: jax.stages.Compiled, devices: int = 1) -> Cost:
    """Returns the cost of a program from ``jax.jit(f).trace(...)`` and what it compiles to. Nothing is run."""
    work = count(traced.jaxpr, devices)
    return Cost(work.flops, work.collectives, Memory.of(compiled), work.uncounted)


class Work(NamedTuple):
    """What a jaxpr computes and sends, on one device."""

    flops: int
    collectives: tuple[Collective, ...]
    uncounted: tuple[str, ...]  # names of primitives that may hide FLOPs, sorted; empty if the count is complete


def count(program: ClosedJaxpr, devices: int = 1) -> Work:
    """Counts FLOPs and collectives of a jaxpr.

    On more than one ``devices``, how a product outside ``shard_map`` is split is the compiler's choice: it is named as
    uncounted. Raises ValueError where a loop around a product has no known length.
    """
    live, _ = dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars), True)
    walk = _Walk(devices)
    flops, _ = walk.jaxpr(live, [0] * len(live.invars), _Place())
    return Work(flops, tuple(group.collective for group in walk.groups), tuple(sorted(walk.uncounted)))


class _Place(NamedTuple):
    """Where in the program an equation is."""

    axes: Mapping[str, int] = {}  # the sizes of the mesh axes that shard_map has made manual
    trips: int | None = 1
    loops: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()

    def inside(self, loop: str, trips: int | None) -> "_Place":
        runs = None if self.trips is None or trips is None else self.trips * trips
        return self._replace(trips=runs, loops=(*self.loops, loop))


@dataclass
class _Group:
    """A collective, to which independent all-reduces of the same devices are added: compilers send them as one."""

    collective: Collective
    key: tuple[Any, ...]
    after: int  # the groups that it waits for, as bits

    def add(self, arrays: list[int], after: int) -> None:
        old = self.collective
        self.collective = replace(old, bytes=old.bytes + sum(arrays), largest=max(old.largest, *arrays))
        self.after |= after


@dataclass
class _Walk:
    """A pass over a program. Each variable has the groups of collectives that it waits for, one bit for each group."""

    devices: int
    groups: list[_Group] = field(default_factory=list)
    uncounted: set[str] = field(default_factory=set)
    blocks: int = 0  # loops and branches so far, to give each a name of its own

    def jaxpr(self, jaxpr: Jaxpr, after: list[int], place: _Place) -> tuple[int, list[int]]:
        """The FLOPs of one run, and what each output waits for."""
        waits: dict[Var, int] = dict(zip(jaxpr.invars, after, strict=True))

        def of(atom: Any) -> int:
            return 0 if isinstance(atom, Literal) else waits.get(atom, 0)

        total = 0
        for eqn in jaxpr.eqns:
            flops, outputs = self.equation(eqn, [of(atom) for atom in eqn.invars], place)
            total += flops
            waits.update(zip(eqn.outvars, outputs, strict=True))
        return total, [of(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: JaxprEqn, after: list[int], place: _Place) -> tuple[int, list[int]]:
        """The FLOPs of one run, and what each output waits for: all operands, but those of a call one by one."""
        name, inner = eqn.primitive.name, jaxprs_in(eqn.params)
        if name in CALLS and [len(jaxpr.invars) for jaxpr in inner] == [len(after)]:
            manual = _manual_axes(eqn) if name == "shard_map" else {}
            return self.jaxpr(inner[0], after, place._replace(axes={**place.axes, **manual}))
        flops, first, together = 0, len(self.groups), functools.reduce(operator.or_, after, 0)
        if name in ("scan", "while"):
            flops = self._loop(eqn, inner, together, place)
        elif name == "cond":
            flops = max(self._inside(branch, together, self._branch(place)) for branch in inner)
        elif name in COLLECTIVES or (name not in WITHOUT_PRODUCTS and _axis_names(eqn)):
            together |= self._send(eqn, together, place)
        else:
            flops = self._product(eqn, inner, place)
        sent = sum(1 << i for i in range(first, len(self.groups)))
        return flops, [together | sent] * len(eqn.outvars)

    def _inside(self, jaxpr: Jaxpr, after: int, place: _Place) -> int:
        return self.jaxpr(jaxpr, [after] * len(jaxpr.invars), place)[0]

    def _loop(self, eqn: JaxprEqn, inner: list[Jaxpr], after: int, place: _Place) -> int:
        """A ``scan`` has a length; a ``while`` (the loop of ``fori_loop`` with traced bounds, too) has none."""
        self.blocks += 1
        name, trips = f"{eqn.primitive.name}.{self.blocks}", eqn.params.get("length")
        flops = sum(self._inside(jaxpr, after, place.inside(name, trips)) for jaxpr in inner)
        if flops and trips is None:
            raise ValueError(
                f"loop {name!r} holds {flops:,} FLOPs per pass, and it is not known how often it runs; "
                f"use lax.scan, or lax.fori_loop with bounds that are plain numbers."
            )
        return flops * (trips or 0)

    def _branch(self, place: _Place) -> _Place:
        self.blocks += 1
        return place._replace(branches=(*place.branches, f"branch.{self.blocks}"))

    def _send(self, eqn: JaxprEqn, after: int, place: _Place) -> int:
        """Adds a collective to what is sent; returns the bits of its own group and of those that it waits for."""
        name, axes, subgroups = eqn.primitive.name, _axis_names(eqn), eqn.params.get("axis_index_groups")
        if name not in COLLECTIVES:
            raise ValueError(f"{name} over {axes}: how much it sends is not known here.")
        kind = COLLECTIVES[name]
        size = len(subgroups[0]) if subgroups else math.prod(place.axes[axis] for axis in axes)
        arrays = [_bytes(var.aval) for var in (eqn.outvars if kind == "all-gather" else eqn.invars)]
        key = name, frozenset(axes), subgroups, place.loops, place.branches
        last = max((i for i, group in enumerate(self.groups) if group.key == key), default=None)
        if kind == "all-reduce" and last is not None and not after & 1 << last:
            self.groups[last].add(arrays, after)
            return self.groups[last].after | 1 << last
        sums, conditional = (sum(arrays), max(arrays)), bool(place.branches)
        self.groups.append(
            _Group(Collective(kind, *sums, size, place.trips, place.loops, conditional, name), key, after)
        )
        return after | 1 << len(self.groups) - 1

    def _product(self, eqn: JaxprEqn, inner: list[Jaxpr], place: _Place) -> int:
        name, flops = eqn.primitive.name, product_flops(eqn)
        if flops is None and (name not in WITHOUT_PRODUCTS or any(map(_holds_product, inner))):
            self.uncounted.add(name)
        if flops and math.prod(place.axes.values()) < self.devices:
            self.uncounted.add(f"{name} outside shard_map")
            return 0
        return flops or 0


def jaxprs_in(params: Mapping[str, Any]) -> list[Jaxpr]:
    """Returns the jaxprs that an equation holds, wherever in its parameters they are."""
    held = (leaf for leaf in jax.tree.leaves(list(params.values())) if isinstance(leaf, Jaxpr | ClosedJaxpr))
    return [leaf.jaxpr if isinstance(leaf, ClosedJaxpr) else leaf for leaf in held]


def _holds_product(jaxpr: Jaxpr) -> bool:
    return any(product_flops(eqn) or any(map(_holds_product, jaxprs_in(eqn.params))) for eqn in jaxpr.eqns)


def _manual_axes(eqn: JaxprEqn) -> dict[str, int]:
    """The mesh axes along which a ``shard_map`` shows each device its own part, and their sizes."""
    key = "newly_manual_axes" if "newly_manual_axes" in eqn.params else "manual_axes"  # by JAX's version
    return {axis: size for axis, size in eqn.params["mesh"].shape.items() if axis in eqn.params[key]}


def _axis_names(eqn: JaxprEqn) -> tuple[str, ...]:
    names = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return tuple(name for name in (names if isinstance(names, tuple) else (names,)) if isinstance(name, str))


def _bytes(aval: Any) -> int:
    return int(aval.size) * int(aval.dtype.itemsize)


def product_flops(eqn: JaxprEqn) -> int | None:
    """Returns the FLOPs of one run of a product or a convolution; None for every other equation."""
    formula = {"dot_general": _dot, "conv_general_dilated": _convolution}.get(eqn.primitive.name)
    return formula(eqn) if formula else None


def _shapes(eqn: JaxprEqn) -> list[tuple[int, ...]]:
    avals: list[Any] = [var.aval for var in (*eqn.invars, *eqn.outvars)]
    return [aval.shape for aval in avals]


def _dot(eqn: JaxprEqn) -> int:
    left, _, result = _shapes(eqn)
    (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
    terms = math.prod(left[axis] for axis in contracted)
    is_sum = terms == 1 or math.prod(result) == math.prod(left[axis] for axis in batch)
    return 0 if is_sum else 2 * math.prod(result) * terms


def _convolution(eqn: JaxprEqn) -> int:
    """Each output element meets the kernel's input features (those of its own group) at each window position."""
    inputs, kernel, result = _shapes(eqn)
    axes = eqn.params["dimension_numbers"]  # of each array: batch (or output) axis, feature axis, then spatial axes
    windows = zip(*(eqn.params[name] for name in WINDOW), strict=True)
    pairs = 1
    for axis, (stride, (padding, _), *dilations) in enumerate(windows, start=2):
        lengths = inputs[axes.lhs_spec[axis]], kernel[axes.rhs_spec[axis]], result[axes.out_spec[axis]]
        pairs *= pairs_that_meet(*lengths, stride, padding, *dilations)
    batch, features = (result[axis] for axis in axes.out_spec[:2])
    return 2 * batch * features * kernel[axes.rhs_spec[1]] * pairs


@functools.cache
def pairs_that_meet(
    inputs: int, weights: int, outputs: int, stride: int, padding: int, input_dilation: int, weight_dilation: int
) -> int:
    """The pairs (output position, weight) along one axis for which there is an input element: no padding, no hole.

    ``padding`` is the one before the input; the other follows from the number of outputs.
    """
    length = (inputs - 1) * input_dilation + 1
    places = (
        output * stride + weight * weight_dilation - padding for output in range(outputs) for weight in range(weights)
    )
    return sum(0 <= place < length and place % input_dilation == 0 for place in places)
