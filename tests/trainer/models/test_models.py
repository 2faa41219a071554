"""The models: parameter counts of the literature, initial weights, dtypes, and errors for wrong arguments."""

import math
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

from looksam.trainer.models import MODELS, build_model
from looksam.trainer.models.functional import Mode
from looksam.trainer.models.layers import BatchNorm

CIFAR, IMAGENET = (32, 32, 3), (224, 224, 3)


@pytest.fixture(autouse=True)
def _float64_strict():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        yield


def count(name, image_shape, num_classes, **options):
    model = build_model(name, image_shape=image_shape, num_classes=num_classes, **options)
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(params))


# Parameter counts


def test_models_are_listed_in_order():
    assert list(MODELS) == sorted(MODELS)
    vits = {"vit", "vit_b16", "vit_b32", "vit_s16", "vit_s32", "vit_tiny"}
    resnets = {"resnet", "resnet8", "resnet18", "resnet50", "resnet_small", "wide_resnet", "wrn28_10", "wrn_small"}
    assert set(MODELS) == {"mlp", "mlp_20m"} | vits | resnets


@pytest.mark.parametrize(
    ("name", "image_shape", "classes", "options", "expected"),
    [
        ("resnet18", CIFAR, 100, {}, 11_220_132),
        ("resnet50", CIFAR, 100, {}, 23_705_252),
        ("resnet18", IMAGENET, 1000, {}, 11_689_512),
        ("resnet50", IMAGENET, 1000, {}, 25_557_032),
        ("wrn28_10", CIFAR, 100, {}, 36_536_884),
        ("wide_resnet", CIFAR, 10, {"depth": 16, "widen": 2}, 691_674),
        ("mlp", (8, 8, 1), 10, {}, 64 * 128 + 128 + 2 * (128 * 128 + 128) + 128 * 10 + 10),
    ],
)
def test_parameter_counts_of_the_literature(name, image_shape, classes, options, expected):
    assert count(name, image_shape, classes, **options) == expected


@pytest.mark.parametrize(
    ("name", "patch", "width", "millions"),
    [("vit_b16", 16, 768, 87), ("vit_b32", 32, 768, 88), ("vit_s16", 16, 384, 22), ("vit_s32", 32, 384, 23)],
)
def test_vit_parameter_counts_of_the_paper(name, patch, width, millions):
    tokens = (224 // patch) ** 2
    embedding = (3 * patch**2 + 1) * width + tokens * width
    block = 12 * width**2 + 13 * width  # 4 w² + 4 w attention, 8 w² + 5 w MLP, 4 w norms
    expected = embedding + 12 * block + 2 * width + (width + 1) * 1000
    found = count(name, IMAGENET, 1000)
    assert found == expected
    assert round(found / 1e6) == millions


def test_small_models_are_small():
    assert 2.5e6 < count("vit_tiny", CIFAR, 100) < 3e6
    assert 1.5e5 < count("resnet_small", CIFAR, 10) < 3e5
    assert count("resnet8", (16, 16, 3), 20) == 78_692
    assert 1.95e7 < count("mlp_20m", CIFAR, 100) < 2.05e7
    assert 2e5 < count("wrn_small", CIFAR, 100) < 4e5


# Init


def test_init_gives_plain_float32_dicts_with_readable_paths():
    model = build_model("vit", image_shape=(8, 8, 3), num_classes=5, width=6, heads=2, depth=11)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    assert {"blocks/0/attention/query/kernel", "blocks/10/up/bias", "position", "head/kernel"} <= set(paths)
    assert all(type(entry.key) is str for path, _ in leaves for entry in path)
    assert stats == {}
    assert {x.dtype for _, x in leaves} == {jnp.dtype("float32")}


def test_init_under_jit_has_the_abstract_shapes_and_gives_the_same_weights():
    model = build_model("resnet", image_shape=(4, 4, 1), num_classes=2, blocks=(1,), width=2)
    key = jax.random.key(0)
    init = jax.jit(model.init)
    jitted, eager, other = init(key), model.init(key), init(jax.random.key(1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), jitted, eager)
    assert not np.allclose(jitted[0]["stem"]["conv"]["kernel"], other[0]["stem"]["conv"]["kernel"])
    like = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert like(jitted) == like(jax.eval_shape(model.init, key))


def test_resnet_starts_as_he_and_with_neutral_norms():
    model = build_model("resnet", image_shape=CIFAR, num_classes=10, blocks=(1,), width=64, zero_init=True)
    params, stats = jax.jit(model.init)(jax.random.key(0))
    kernel = np.asarray(params["blocks"]["0"]["units"]["0"]["conv"]["kernel"])
    assert kernel.std() == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.02)
    scales = [np.unique(unit["norm"]["scale"]) for unit in params["blocks"]["0"]["units"].values()]
    assert [s.tolist() for s in scales] == [[1.0], [0.0]]
    assert np.unique(stats["stem"]["norm"]["mean"]).tolist() == [0.0]
    assert np.unique(stats["stem"]["norm"]["var"]).tolist() == [1.0]


# Precision


def dtypes_by_primitive(jaxpr, found=None):
    """The input dtypes of each primitive, inner programs included."""
    found = defaultdict(list) if found is None else found
    for eqn in jaxpr.eqns:
        found[eqn.primitive.name].append({v.aval.dtype.name for v in eqn.invars if hasattr(v.aval, "dtype")})
        for inner in jaxprs_in_params(eqn.params):
            dtypes_by_primitive(inner, found)
    return found


@pytest.mark.parametrize("name", ["mlp", "resnet_small", "vit_tiny", "wrn_small"])
def test_bfloat16_computes_narrow_and_keeps_float32(name):
    model = build_model(name, image_shape=CIFAR, num_classes=10, dtype=jnp.bfloat16)
    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((2, *CIFAR), jnp.float32)
    apply = lambda p, s, x: model.apply(p, s, x, train=True)
    logits, new = jax.eval_shape(apply, params, stats, x)
    assert logits.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((params, new)))
    found = dtypes_by_primitive(jax.make_jaxpr(apply)(params, stats, x).jaxpr)
    products = found["dot_general"] + found["conv_general_dilated"]
    assert products.count({"float32"}) == 1  # the head
    assert products.count({"bfloat16"}) == len(products) - 1 > 0
    # means, variances and the softmax
    assert all(kinds == {"float32"} for op in ("reduce_sum", "exp", "rsqrt") for kinds in found[op])


def test_batch_variance_does_not_cancel_near_the_running_mean():
    layer = BatchNorm(1, dtype=jnp.dtype("float32"))
    layer.mean[...] = jnp.full(1, 1e4, jnp.float32)
    layer.var[...] = jnp.zeros(1, jnp.float32)
    x = (1e4 + np.random.default_rng(0).normal(size=(64, 4, 4, 1))).astype(np.float32)
    layer(jnp.asarray(x), Mode(train=True))
    np.testing.assert_allclose(layer.var[...], 0.1 * x.astype(np.float64).var(), rtol=1e-3)


# Under the trainer's transforms


def test_training_steps_share_one_trace():
    model = build_model("resnet", image_shape=(8, 8, 1), num_classes=3, blocks=(1,), width=2)
    params, stats = model.init(jax.random.key(0))
    x = jnp.ones((2, 8, 8, 1), jnp.float32)
    traces = []

    @jax.jit
    def step(params, stats, x):
        traces.append(1)
        return model.apply(params, stats, x, train=True)

    start = stats
    for _ in range(3):
        _, stats = step(params, stats, x)
    assert len(traces) == 1
    assert not np.array_equal(stats["stem"]["norm"]["mean"], start["stem"]["norm"]["mean"])


def test_pure_models_keep_no_state_of_their_own():
    model = build_model("mlp", image_shape=(2, 2, 1), num_classes=3, widths=())
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(model.init, jax.random.key(0))[0])
    x = jnp.ones((1, 2, 2, 1), jnp.float32)
    assert np.asarray(model.apply(zeros, {}, x, train=False)[0]).tolist() == [[0.0, 0.0, 0.0]]
    assert not any(isinstance(leaf, nnx.Variable) for leaf in jax.tree.leaves(zeros))


# Bad input

DIGITS = {"image_shape": (8, 8, 1), "num_classes": 10}


@pytest.mark.parametrize(
    ("name", "options", "error", "match"),
    [
        ("resnet19", {}, ValueError, r"'resnet19' is unknown; did you mean .*resnet18"),
        ("zzz", {}, ValueError, r"there are mlp, mlp_20m, resnet, "),
        ("mlp", {"width": 3}, TypeError, r"no option 'width'; its options are widths"),
        ("vit_tiny", {"depht": 3}, TypeError, r"its options are dropout, stochastic_depth"),
        ("vit_tiny", {"depth": 3}, TypeError, r"fixes depth=6; build 'vit' to choose depth"),
        ("vit", {"patch": 3}, ValueError, r"patch=3 does not divide the image's height=8"),
        ("vit", {"heads": 5}, ValueError, r"heads=5 does not divide width=192"),
        ("vit", {"depth": 0}, ValueError, r"depth=0 is out of range"),
        ("vit", {"depth": 2.0}, TypeError, r"depth=2.0 is not an int"),
        ("vit", {"dropout": 1.0}, ValueError, r"dropout=1.0 is out of range; pass 0 <= dropout < 1"),
        ("vit", {"stochastic_depth": "0"}, TypeError, r"stochastic_depth='0' is not a number"),
        ("vit", {"mlp_ratio": 0}, ValueError, r"mlp_ratio=0 is out of range"),
        ("mlp", {"widths": 128}, TypeError, r"widths=128 is not a sequence"),
        ("mlp", {"widths": (8, -1)}, ValueError, r"widths\[1\]=-1 is out of range"),
        ("resnet", {"blocks": ()}, ValueError, r"blocks=\(\) has no stage"),
        ("resnet", {"bottleneck": 1}, TypeError, r"bottleneck=1 is not a bool"),
        ("wide_resnet", {"depth": 12}, ValueError, r"depth=12 is not 6n \+ 4"),
        ("wide_resnet", {"widen": True}, TypeError, r"widen=True is not an int"),
        ("mlp", {"image_shape": (8, 8)}, ValueError, r"\(8, 8\) is not \(height, width, channels\)"),
        ("mlp", {"num_classes": 0}, ValueError, r"num_classes=0 is out of range"),
        ("mlp", {"dtype": jnp.int32}, TypeError, r"dtype=int32 is not floating-point"),
    ],
)
def test_bad_builds(name, options, error, match):
    with pytest.raises(error, match=match):
        build_model(name, **(DIGITS | options))


def test_float64_needs_x64():
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="float64 is disabled in JAX; set jax_enable_x64"),
    ):
        build_model("mlp", **DIGITS, dtype=np.float64)


def test_bad_calls():
    model = build_model("mlp", image_shape=(2, 2, 1), num_classes=3, widths=(4,))
    params, stats = model.init(jax.random.key(0))
    x = jnp.ones((5, 2, 2, 1), jnp.float32)
    call = lambda p=params, s=stats, x=x: model.apply(p, s, x, train=False)
    with pytest.raises(ValueError, match=r"images have shape \(5, 4\); this model takes \(batch, 2, 2, 1\)"):
        call(x=x.reshape(5, 4))
    with pytest.raises(TypeError, match=r"images have dtype uint8; scale them to floats"):
        call(x=x.astype(jnp.uint8))
    with pytest.raises(ValueError, match=r"params lacks 'head/bias'"):
        call(p=params | {"head": {"kernel": params["head"]["kernel"]}})
    with pytest.raises(ValueError, match=r"params has 'tail', and the model does not"):
        call(p=params | {"tail": x})
    with pytest.raises(ValueError, match=r"params 'head/bias' has shape \(7,\), and \(3,\) in the model"):
        call(p=params | {"head": params["head"] | {"bias": jnp.zeros(7, jnp.float32)}})
    with pytest.raises(ValueError, match=r"stats has 'stem/mean', and the model does not"):
        call(s={"stem": {"mean": x}})
