"""Models of the user's own: Flax NNX modules and pairs of functions train like the built-in ones, or are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from looksam.trainer.models import Model, build_model
from looksam.trainer.own_code import OwnCodeError

pytestmark = pytest.mark.usefixtures("as_users_run_it")
SHAPE, CLASSES = (4, 4, 2), 3


class Net(nnx.Module):
    def __init__(self, features, width, classes, rngs):
        self.first = nnx.Linear(features, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.drop = nnx.List([nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)])
        self.last = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, images):
        x = self.norm(self.first(images.reshape(len(images), -1)))
        for drop in self.drop:
            x = drop(x)
        return self.last(x)


def net(image_shape, num_classes, dtype, *, rngs, width=64):
    return Net(int(np.prod(image_shape)), width, num_classes, rngs)


def pair(image_shape, num_classes, dtype):
    def init(key):
        return [{"zz": jnp.zeros(num_classes)}, jax.random.normal(key, (int(np.prod(image_shape)), num_classes))]

    def apply(params, images, *, train, key):
        noise = jax.random.normal(key, ()) if train else 0.0
        return images.reshape(len(images), -1) @ params[1] + params[0]["zz"] + noise

    return init, apply


def built(builder, **options):
    return build_model(builder, image_shape=SHAPE, num_classes=CLASSES, **options)


@pytest.fixture
def images():
    return jnp.asarray(np.random.default_rng(0).normal(size=(8, *SHAPE)), jnp.float32)


# --- Flax NNX -----------------------------------------------------------------------------------------------------


def test_a_module_has_our_paths_and_follows_the_key():
    model = built(net, width=16)
    params, stats = jax.jit(model.init)(jax.random.key(0))
    other, _ = model.init(jax.random.key(1))
    assert params["first"]["kernel"].shape == (32, 16)
    assert stats.keys() == {"norm"} and params.keys() == {"first", "norm", "last"}
    assert not np.array_equal(params["first"]["kernel"], other["first"]["kernel"])


def test_training_moves_statistics_and_evaluation_uses_them(images):
    model = built(net)
    params, stats = model.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), len(images))  # as the trainer passes them
    _, moved = model.apply(params, stats, images, train=True, key=keys)
    hidden = images.reshape(8, -1) @ params["first"]["kernel"] + params["first"]["bias"]
    np.testing.assert_allclose(moved["norm"]["mean"], 0.01 * hidden.mean(0), rtol=1e-4, atol=1e-6)
    logits, same = model.apply(params, moved, images, train=False)
    assert same is moved
    normal = (hidden - moved["norm"]["mean"]) / np.sqrt(moved["norm"]["var"] + 1e-5)
    expected = normal @ params["last"]["kernel"] + params["last"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_one_key_gives_one_mask_and_each_layer_its_own(images):
    model = built(net)
    params, stats = model.init(jax.random.key(0))
    passes = [model.apply(params, stats, images, train=True, key=jax.random.key(i))[0] for i in (0, 0, 1)]
    assert np.array_equal(passes[0], passes[1]) and not np.array_equal(passes[0], passes[2])
    ones = jax.tree.map(jnp.ones_like, params)  # logits then count the units that both layers keep
    kept = (model.apply(ones, stats, images, train=True, key=jax.random.key(0))[0][:, 0] - 1) / 4
    assert np.abs(np.asarray(kept).mean()) < 64 * 0.5


def test_a_module_computes_in_bfloat16_with_float32_logits(images):
    def half(image_shape, num_classes, dtype, *, rngs):
        assert dtype == jnp.bfloat16
        return nnx.Sequential(lambda x: x.reshape(len(x), -1), nnx.Linear(32, num_classes, dtype=dtype, rngs=rngs))

    model = built(half, dtype=jnp.bfloat16)
    logits, _ = model.apply(*model.init(jax.random.key(0)), images, train=False)
    assert logits.dtype == jnp.float32


# --- two functions, and the built-in form -------------------------------------------------------------------------


def test_a_pair_becomes_a_dict_by_path(images):
    model = built(pair)
    params, stats = model.init(jax.random.key(0))
    assert set(params) == {"0/zz", "1"} and stats == {}
    logits, _ = model.apply(params, stats, images, train=False)
    np.testing.assert_allclose(logits, images.reshape(8, -1) @ params["1"], rtol=1e-5)
    moved, _ = model.apply(params, stats, images, train=True, key=jax.random.split(jax.random.key(0), 8))
    assert not np.array_equal(moved, logits)


def test_a_model_is_taken_as_it_is():
    own = build_model("mlp", image_shape=SHAPE, num_classes=CLASSES, widths=(5,))
    assert built(lambda image_shape, num_classes, dtype: own) is own


# --- what does not fit --------------------------------------------------------------------------------------------


def counted(image_shape, num_classes, dtype, *, rngs):
    module = net(image_shape, num_classes, dtype, rngs=rngs)
    module.calls = nnx.Cache(jnp.zeros(()))
    return module


def broken(image_shape, num_classes, dtype, *, rngs):
    raise KeyError("no such layer")


def integers(image_shape, num_classes, dtype):
    init, apply = pair(image_shape, num_classes, dtype)
    return lambda key: [*init(key), jnp.zeros(3, jnp.int32)], apply


def new_statistics(image_shape, num_classes, dtype):
    init, apply = pair(image_shape, num_classes, dtype)
    logits = lambda params, images: apply(params, images, train=False, key=None)
    return Model(lambda key: (init(key), {}), lambda p, s, images, **_: (logits(p, images), {"n": jnp.ones(())}))


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (lambda image_shape: None, r"cannot be called \(too many positional arguments\); define it as def build\("),
        (lambda a, b, c, *, size: None, r"missing a required .*'size'.*define it as def build\("),
        (lambda a, b, c, *, rngs: 3, "takes rngs, but returns a int; return an nnx.Module"),
        (lambda a, b, c: 3, r"returns a int; return an nnx.Module, or two functions \(init, apply\)"),
        (lambda a, b, c: net(a, b, c, rngs=nnx.Rngs(0)), "takes no rngs, so its weights cannot follow"),
        (lambda a, b, c, *, rngs: net(a, 7, c, rngs=rngs), r"logits of shape \(2, 7\); return \(batch, 3\)"),
        (lambda a, b, c: (lambda key: {}, lambda *a, **k: jnp.zeros((2, 3))), "has no parameters"),
        (counted, "has calls of type nnx.Cache; a training step carries nnx.Param"),
        (integers, "the parameter 2 is int32, which has no gradient"),
        (new_statistics, "changes the shape or dtype of its statistics"),
        (broken, r"test_own_model.py, line \d+: KeyError: 'no such layer'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_anything_is_computed(builder, message):
    with pytest.raises(OwnCodeError, match=message):
        built(builder)


def test_an_option_that_it_does_not_have():
    with pytest.raises(TypeError, match="net has no option 'depth'; its options are width"):
        built(net, depth=3)
