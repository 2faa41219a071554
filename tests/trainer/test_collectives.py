"""What a sharded step communicates, read from its compiled program: the least that the mathematics needs."""

import functools

import jax
import pytest

from looksam.trainer.parallel import make_layout
from looksam.trainer.plan.collectives import Collective, collectives
from looksam.trainer.recipe import Recipe
from looksam.trainer.training import compile_step

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
def sent(refresh: bool, **settings) -> tuple[Collective, ...]:
    """The collectives of a step of the ViT; those of norms, losses and flags left out."""
    recipe = VIT.replace(**settings)
    program = compile_step(recipe, make_layout(recipe.mesh_sizes()), refresh)
    return tuple(c for c in collectives(program.as_text()) if not c.is_scalar)


@pytest.mark.parametrize("microbatch", [None, 16])
@pytest.mark.parametrize("refresh", [False, True])
def test_a_data_mesh_reduces_each_gradient_once(refresh, microbatch):
    """One reduction on a reuse step and two on a refresh step, after the loop over micro-batches and not inside it."""
    collected = sent(refresh, mesh="data=8", microbatch=microbatch)
    assert [c.kind for c in collected] == ["all-reduce"] * (1 + refresh)
    for reduction in collected:
        assert reduction.loops == () and reduction.group_size == 8
        assert 4 * PARAMETERS <= reduction.bytes <= 4 * PARAMETERS + 64  # loss and accuracy may ride along


def test_groups_on_devices_reduce_both_gradients_once():
    """m-sharpness perturbs without communication; g and g_s are reduced for g_v, together or one by one."""
    collected = sent(True, mesh="data=8", groups="device", microbatch=32)
    assert {c.kind for c in collected} == {"all-reduce"} and all(c.loops == () for c in collected)
    assert 8 * PARAMETERS <= sum(c.bytes for c in collected) <= 8 * PARAMETERS + 64


@pytest.mark.parametrize(
    ("refresh", "mesh", "microbatch"), [(True, "fsdp=8", None), (True, "fsdp=8", 16), (False, "data=2,fsdp=4", 16)]
)
def test_fsdp_gathers_and_scatters_the_parameters_once_per_gradient(refresh, mesh, microbatch):
    """At most the ideal amount in all: two gathers (forward and backward) and one scatter for each gradient.

    The parameters are gathered once per gradient, for both passes and all micro-batches. Those too small to be sharded,
    and the shards on a second axis, are all-reduced. The rest are row sums of norms, under 1 % of the parameters.
    """
    gradients, collected = 1 + refresh, sent(refresh, mesh=mesh, microbatch=microbatch)
    bytes_of = {kind: sum(c.bytes for c in collected if c.kind == kind) for kind in {c.kind for c in collected}}
    assert all(c.loops == () for c in collected)
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
