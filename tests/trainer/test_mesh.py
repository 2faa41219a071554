"""A step on one device and on a mesh of eight is the same step: float64, a smooth model, ten steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from spread import DATA, SMOOTH, largest_difference, train

from looksam.methods import METHODS
from looksam.trainer.parallel import MeshLayout, SingleDeviceLayout, make_layout
from looksam.trainer.recipe import Recipe

pytestmark = pytest.mark.usefixtures("in_float64")
PLAIN = Recipe(batch_size=48, epochs=10, learning_rate=0.05, rho=0.1, k=3, clip_norm=1.0)


@pytest.fixture(scope="module")
def alone():
    """Runs on one device with an unsplit batch, each trained once."""
    runs = {}

    def get(recipe):
        if recipe not in runs:
            runs[recipe] = train(recipe, SingleDeviceLayout())
        return runs[recipe]

    return get


@pytest.mark.parametrize("microbatch", [None, 16])
@pytest.mark.parametrize("mesh", ["data=8", "fsdp=8", "data=2,fsdp=4"])
@pytest.mark.parametrize("method", METHODS)
def test_losses_and_state_are_those_of_one_device(alone, method, mesh, microbatch):
    recipe = PLAIN.replace(method=method, optimizer="lamb" if "layer" in method else "sgdm")
    expected = alone(recipe)
    got = train(recipe.replace(microbatch=microbatch, mesh=mesh))
    assert largest_difference(got, expected) < 1e-9
    assert expected.losses[0] - expected.losses[-1] > 1e-3  # the weights have moved


@pytest.mark.parametrize(("mesh", "microbatch"), [("data=1", 24), ("data=1", 8), ("data=2", 24), ("data=8", 24)])
@pytest.mark.parametrize("method", ["sam", "look_layer_sam"])
def test_groups_are_perturbed_separately_on_any_mesh(alone, method, mesh, microbatch):
    """m-sharpness: eight groups of six images, against eight gradients by hand in tests/rules/test_groups.py."""
    expected = alone(PLAIN.replace(method=method, groups=8))
    got = train(PLAIN.replace(method=method, groups=8, mesh=mesh, microbatch=microbatch))
    assert largest_difference(got, expected) < 1e-9
    assert largest_difference(alone(PLAIN.replace(method=method)), expected) > 1e-4


def test_groups_by_device(alone):
    expected = alone(PLAIN.replace(method="look_sam", groups=8))
    assert largest_difference(train(PLAIN.replace(method="look_sam", groups="device", mesh="data=8")), expected) < 1e-9


def test_augmentation_and_dropout_are_those_of_one_device(alone):
    """What is drawn for an image depends on its position in the batch, not on devices or micro-batches."""
    drawn = {"crop_padding": 1, "randaugment": 1, "mixup": 0.2, "dropout": 0.2, "label_smoothing": 0.1}
    recipe = PLAIN.replace(method="look_sam", **drawn)
    got = train(recipe.replace(mesh="data=2,fsdp=4", microbatch=16))
    assert largest_difference(got, alone(recipe)) < 1e-9


def test_batch_statistics_are_of_the_whole_batch():
    """BatchNorm: equal across meshes without accumulation."""
    recipe = PLAIN.replace(method="look_sam", model="resnet", optimizer="sgdm")
    expected, got = (train(recipe.replace(mesh=mesh), steps=4) for mesh in ("data=1", "data=4,fsdp=2"))
    assert largest_difference(got, expected) < 1e-9
    assert jax.tree.leaves(got.state.stats)


def test_the_state_is_created_in_shards():
    """Each device holds an eighth of every large array, and so does the program that creates it."""
    layout = make_layout((1, 8))
    assert isinstance(layout, MeshLayout)
    make = jax.jit(
        lambda key: {"w": jax.random.normal(key, (512, 1024))},
        out_shardings=layout.shardings({"w": jax.ShapeDtypeStruct((512, 1024), float)}),
    )
    memory = make.lower(jax.random.key(0)).compile().memory_analysis()
    whole = 512 * 1024 * 8
    assert memory.output_size_in_bytes <= whole / 8 + 64
    assert memory.temp_size_in_bytes < whole / 2
    w = make(jax.random.key(0))["w"]
    assert {shard.data.size for shard in w.addressable_shards} == {512 * 128}


def test_which_arrays_are_sharded():
    layout = make_layout((2, 4))
    assert isinstance(layout, MeshLayout)
    specs = {
        shape: tuple(layout.spec(shape)) for shape in ((64, 256), (256, 64), (63, 128), (64, 3, 3, 7), (1023,), ())
    }
    assert specs == {
        (64, 256): (None, "fsdp"),
        (256, 64): ("fsdp",),
        (63, 128): (None, "fsdp"),
        (64, 3, 3, 7): ("fsdp",),
        (1023,): (),
        (): (),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mesh": "data=16"}, "16 devices, and there are 8"),
        ({"mesh": "data=8", "batch_size": 44}, "batch_size=44 is not a multiple of the 8 devices of the mesh"),
        ({"mesh": "data=8", "microbatch": 12}, "microbatch=12 is not a multiple of the 8 devices of the mesh"),
        ({"mesh": "data=1", "microbatch": 36}, "batch_size=48 is not a multiple of microbatch=36"),
        ({"mesh": "data=8", "groups": 4}, "groups=4 is not a multiple of the 8 devices of the mesh"),
        ({"mesh": "data=1", "groups": 5}, "batch_size=48 is not a multiple of groups=5"),
        ({"mesh": "data=8", "microbatch": 8, "mixup": 0.2}, "1 images at a time, and mixup takes pairs"),
    ],
)
def test_sizes_that_do_not_divide(settings, message):
    with pytest.raises(ValueError, match=message):
        train(PLAIN.replace(method="sam", **settings))


@pytest.mark.parametrize("mesh", ["data", "data=0", "data=x", "model=2", "data=2;fsdp=4", ""])
def test_a_mesh_that_is_not_understood(mesh):
    with pytest.raises(ValueError, match="mesh=.*is not understood; pass e.g. data=8"):
        Recipe(mesh=mesh)


def test_a_smooth_model_has_no_kinks():
    """The model of these tests is worth its name: its gradient is that of small differences."""
    params, _ = SMOOTH.init(jax.random.key(0))
    x = jnp.asarray(DATA.train.images[:4] / 255.0)
    loss = lambda w: jnp.mean(SMOOTH.apply({**params, "out": w}, {}, x, train=False)[0] ** 2)
    slope = jax.grad(loss)(params["out"])[0, 0]
    step = 1e-6 * jnp.zeros_like(params["out"]).at[0, 0].set(1.0)
    np.testing.assert_allclose(slope, (loss(params["out"] + step) - loss(params["out"] - step)) / 2e-6, rtol=1e-6)
