"""What a sharded step sends, in its compiled program: the least that the mathematics needs, and what a plan counts."""

import collections
import functools

import jax
import pytest
from hlo_collectives import collectives

from looksam.trainer.parallel import make_layout
from looksam.trainer.plan.flops import count
from looksam.trainer.plan.program import SCALAR_BYTES, Collective
from looksam.trainer.recipe import Recipe
from looksam.trainer.training import FAST_COMPILE, trace_step

pytestmark = pytest.mark.usefixtures("as_users_run_it")

VIT = Recipe(
    dataset="cifar100",
    model="vit",
    patch=8,
    width=32,
    depth=1,
    heads=2,
    batch_size=64,
    optimizer="lamb",
    clip_norm=1.0,
    method="look_layer_sam",
    epochs=1,
)
# patches, positions, one block of 12 · 32² kernels and 13 · 32 biases and norms, the last norm, the head
PARAMETERS = (3 * 64 + 1) * 32 + 16 * 32 + (12 * 32**2 + 13 * 32) + 2 * 32 + (32 + 1) * 100


@functools.cache
def programs(refresh: bool, **settings) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """The collectives of a step of the ViT, from the compiled program and from the jaxpr."""
    recipe = VIT.replace(**settings)
    layout = make_layout(recipe.mesh_sizes())
    traced = trace_step(recipe, layout, refresh)
    compiled = traced.lower().compile(compiler_options=FAST_COMPILE)
    return tuple(collectives(compiled.as_text())), count(traced.jaxpr, layout.devices).collectives


def sent(refresh: bool, **settings) -> tuple[Collective, ...]:
    """The collectives of the compiled program; those of norms, losses and flags left out."""
    return tuple(c for c in programs(refresh, **settings)[0] if not c.is_scalar)


MESHES = (
    (True, {"mesh": "data=8", "microbatch": 16}),
    (False, {"mesh": "data=8", "microbatch": None}),
    (True, {"mesh": "data=8", "groups": "device", "microbatch": 32}),
    (True, {"mesh": "fsdp=8", "microbatch": 16}),
    (False, {"mesh": "data=2,fsdp=4", "microbatch": 16}),
)


@pytest.mark.parametrize(("refresh", "settings"), MESHES)
def test_a_plan_counts_what_the_compiled_program_sends(refresh, settings):
    """Number, kind, devices, loops and bytes agree: on a data mesh exactly, and with fsdp but for norms.

    The norm of an array that is split over fsdp is a sum over devices, which the compiler adds: all-reduces of scalars
    (some go along with those of gradients), and all-gathers of a partial sum for each device and row.
    """
    compiled, counted = (collections.Counter(map(facts, found)) for found in programs(refresh, **settings))
    if "fsdp" not in settings["mesh"]:
        assert counted == compiled
    added, missing = (list(rest.elements()) for rest in (compiled - counted, counted - compiled))
    scalars = [f for f in added if f[0] == "all-reduce" and f[2] < SCALAR_BYTES]
    sums = [f for f in added if f[0] == "all-gather" and f[1] <= 4 * 8 * VIT.width]
    with_scalars = [f for f in added if f not in scalars and f not in sums]
    assert len(with_scalars) == len(missing)
    for ours, theirs in zip(sorted(missing), sorted(with_scalars), strict=True):
        assert ours[0] == "all-reduce" and ours[2:] == theirs[2:] and 0 < theirs[1] - ours[1] < SCALAR_BYTES


def facts(c: Collective) -> tuple:
    return c.kind, c.bytes, c.largest, c.group_size, c.trips, len(c.loops), c.conditional


@pytest.mark.parametrize("microbatch", [None, 16])
@pytest.mark.parametrize("refresh", [False, True])
def test_a_data_mesh_reduces_each_gradient_once(refresh, microbatch):
    """One reduction on a reuse step and two on a refresh step, after the loop over micro-batches and not inside it."""
    found = sent(refresh, mesh="data=8", microbatch=microbatch)
    assert [c.kind for c in found] == ["all-reduce"] * (1 + refresh)
    for reduction in found:
        assert reduction.loops == () and reduction.group_size == 8
        assert 4 * PARAMETERS <= reduction.bytes <= 4 * PARAMETERS + 64  # loss and accuracy may ride along


@pytest.mark.parametrize(("method", "gradients"), [("msam", 1), ("gsam", 2)])
def test_a_rule_reduces_as_many_gradients_as_it_takes(method, gradients):
    """MSAM's momentum and the perturbation along it need none: every device has the whole of both."""
    found = sent(True, method=method, mesh="data=8", microbatch=16)
    assert [c.kind for c in found] == ["all-reduce"] * gradients
    assert sum(c.bytes for c in found) <= gradients * (4 * PARAMETERS + 64)


def test_groups_on_devices_reduce_both_gradients_once():
    """m-sharpness perturbs without communication; g and g_s are reduced for g_v, together or one by one."""
    found = sent(True, mesh="data=8", groups="device", microbatch=32)
    assert {c.kind for c in found} == {"all-reduce"} and all(c.loops == () for c in found)
    assert 8 * PARAMETERS <= sum(c.bytes for c in found) <= 8 * PARAMETERS + 64


@pytest.mark.parametrize(
    ("refresh", "mesh", "microbatch"), [(True, "fsdp=8", None), (True, "fsdp=8", 16), (False, "data=2,fsdp=4", 16)]
)
def test_fsdp_gathers_and_scatters_the_parameters_once_per_gradient(refresh, mesh, microbatch):
    """In all at most what is ideal, two gathers (forward and backward) and one scatter for each gradient.

    The parameters are gathered once per gradient, for both passes and all micro-batches. Those too small to be cut, and
    the parts on a second axis, are all-reduced. The rest is row sums of norms: under a hundredth of the parameters.
    """
    gradients, found = 1 + refresh, sent(refresh, mesh=mesh, microbatch=microbatch)
    bytes_of = {kind: sum(c.bytes for c in found if c.kind == kind) for kind in {c.kind for c in found}}
    assert all(c.loops == () for c in found)
    assert bytes_of.keys() <= {"all-gather", "reduce-scatter", "all-reduce"}
    small = 4 * PARAMETERS / 100
    assert bytes_of["all-gather"] <= gradients * (4 * PARAMETERS + small)
    assert bytes_of["reduce-scatter"] <= gradients * 4 * PARAMETERS
    ideal = gradients * 3 * 4 * PARAMETERS
    assert sum(bytes_of.values()) <= ideal


def test_nothing_of_the_batch_is_sent():
    """With few parameters, all that is sent is smaller than the batch in any form: images, activations, augmented."""
    few = {"width": 4, "heads": 1, "patch": 16, "randaugment": 1, "crop_padding": 4, "mixup": 0.2, "dropout": 0.1}
    batch = 64 * 3 * 32**2  # bytes of the images
    assert 0 < sum(c.bytes for c in sent(True, mesh="data=2,fsdp=4", **few)) < batch / 2


def test_parameters_are_counted_right():
    recipe = VIT.replace(mesh="data=1")
    from looksam.trainer.training import abstract_dataset, make_model

    params, _ = jax.eval_shape(make_model(recipe, abstract_dataset(recipe)).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == PARAMETERS
