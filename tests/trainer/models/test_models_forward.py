"""Forward passes compared with NumPy versions of the definitions, in float64, and the randomness of training."""

import itertools
import math
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looksam.trainer.models import build_model


@pytest.fixture(autouse=True)
def _float64_strict():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        yield


def filled(model, seed=0):
    """Random float64 values for every parameter and statistic, so that no term drops out of a comparison."""
    rng = np.random.default_rng(seed)

    def draw(path, x):
        if path[-1].key in ("scale", "mean", "var"):  # positive scales: no ReLU is dead for every input
            return rng.uniform(0.5, 1.5, x.shape)
        return rng.normal(size=x.shape) / math.sqrt(math.prod(x.shape[:-1]) if x.ndim > 1 else 10)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(model.init, jax.random.key(0)))


def images(shape, n=3, seed=1):
    return np.random.default_rng(seed).normal(size=(n, *shape))


# The definitions, in NumPy


def np_conv(x, kernel, stride):
    size = kernel.shape[0]
    pad = (size - 1) // 2
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("nhwcij,ijco->nhwo", windows, kernel)


def np_pool(x):
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))[:, ::2, ::2].max((-1, -2))


def np_batch_norm(x, params, stats, train, new):
    mean, var = stats["mean"], stats["var"]
    if train:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        new.append({"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var})
    return params["scale"] * (x - mean) / np.sqrt(var + 1e-5) + params["bias"]


def relu(x):
    return np.maximum(x, 0)


def np_resnet(params, stats, x, strides, train, large):
    """``strides`` holds, for each block, the stride of each unit and then of the skip."""
    new = []

    def unit(p, s, x, stride):
        return np_batch_norm(np_conv(x, p["conv"]["kernel"], stride), p["norm"], s["norm"], train, new)

    x = relu(unit(params["stem"], stats["stem"], x, 2 if large else 1))
    x = np_pool(x) if large else x
    for i, block_strides in enumerate(strides):
        p, s = params["blocks"][str(i)], stats["blocks"][str(i)]
        y = x
        for j, stride in enumerate(block_strides[:-1]):
            y = unit(p["units"][str(j)], s["units"][str(j)], y, stride)
            y = relu(y) if j < len(block_strides) - 2 else y
        skip = unit(p["skip"], s["skip"], x, block_strides[-1]) if "skip" in p else x
        x = relu(skip + y)
    return x.mean((1, 2)) @ params["head"]["kernel"] + params["head"]["bias"], new


def np_wide_resnet(params, stats, x, train):
    new = []

    def act(p, s, x):
        return relu(np_batch_norm(x, p, s, train, new))

    x = np_conv(x, params["stem"]["kernel"], 1)
    for i, stride in enumerate((1, 2, 2)):
        p, s = params["blocks"][str(i)], stats["blocks"][str(i)]
        active = act(p["norm1"], s["norm1"], x)
        skip = np_conv(active, p["skip"]["kernel"], stride) if "skip" in p else x
        inner = act(p["norm2"], s["norm2"], np_conv(active, p["conv1"]["kernel"], stride))
        x = skip + np_conv(inner, p["conv2"]["kernel"], 1)
    x = act(params["norm"], stats["norm"], x)
    return x.mean((1, 2)) @ params["head"]["kernel"] + params["head"]["bias"], new


def by_mean(stats):
    """The statistics as a sorted list of (mean, var), to compare without naming every layer."""
    pairs = defaultdict(dict)
    for path, x in jax.tree_util.tree_leaves_with_path(stats):
        pairs[str(path[:-1])][path[-1].key] = np.asarray(x)
    return sorted(pairs.values(), key=lambda pair: (len(pair["mean"]), *pair["mean"]))


RESNETS = {
    "basic, small stem": ((6, 5, 2), {"blocks": (2, 1), "width": 3}, [(1, 1, 1), (1, 1, 1), (2, 1, 2)]),
    "bottleneck, large stem": (
        (66, 65, 2),
        {"blocks": (1, 1), "width": 4, "bottleneck": True},
        [(1, 1, 1, 1), (1, 2, 1, 2)],
    ),
}


@pytest.mark.parametrize("case", RESNETS)
def test_resnet_is_its_definition(case):
    shape, options, strides = RESNETS[case]
    model = build_model("resnet", image_shape=shape, num_classes=4, dtype=jnp.float64, **options)
    reference = lambda p, s, x, train: np_resnet(p, s, x, strides, train, large=max(shape[:2]) > 64)
    check_against(model, reference, images(shape))


def test_wide_resnet_is_its_definition():
    model = build_model("wide_resnet", image_shape=(6, 5, 2), num_classes=4, dtype=jnp.float64, depth=10, widen=1)
    check_against(model, np_wide_resnet, images((6, 5, 2)))


def check_against(model, reference, x):
    """Logits and statistics after a training pass, and logits of evaluation with fixed statistics."""
    params, stats = filled(model)
    apply = jax.jit(model.apply, static_argnames="train")
    logits, new = apply(params, stats, x, train=True)
    expected, expected_stats = reference(params, stats, x, True)
    assert np.ptp(expected, axis=0).min() > 1e-3  # outputs differ, so that every layer is compared
    np.testing.assert_allclose(logits, expected, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(by_mean(new), by_mean(dict(enumerate(expected_stats))), strict=True):
        np.testing.assert_allclose(ours["mean"], theirs["mean"], rtol=1e-10)
        np.testing.assert_allclose(ours["var"], theirs["var"], rtol=1e-10)
    evaluated, kept = apply(params, stats, x, train=False)
    np.testing.assert_allclose(evaluated, reference(params, stats, x, False)[0], rtol=1e-10, atol=1e-12)
    assert jax.tree.all(jax.tree.map(np.array_equal, kept, stats))


def np_vit(params, x, patch, heads, keeps):
    """``keeps`` holds the factor of each residual branch: (attention, mlp) for each block."""
    n, height, width, _ = x.shape
    cells = itertools.product(range(height // patch), range(width // patch))
    cut = lambda i, j: x[:, i * patch : (i + 1) * patch, j * patch : (j + 1) * patch].reshape(n, -1)
    dense = lambda p, y: y @ p["kernel"] + p["bias"]
    x = dense(params["embed"], np.stack([cut(*cell) for cell in cells], 1)) + params["position"]

    def norm(p, y):
        centred = y - y.mean(-1, keepdims=True)
        return p["scale"] * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) + p["bias"]

    def attention(p, y):
        split = lambda z: z.reshape(n, -1, heads, z.shape[-1] // heads).transpose(0, 2, 1, 3)
        q, k, v = (split(dense(p[name], y)) for name in ("query", "key", "value"))
        weights = np.exp(q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        return dense(p["out"], mixed.transpose(0, 2, 1, 3).reshape(y.shape))

    def gelu(y):
        return 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))

    for i, (keep_attention, keep_mlp) in enumerate(keeps):
        p = params["blocks"][str(i)]
        x = x + keep_attention * attention(p["attention"], norm(p["norm1"], x))
        x = x + keep_mlp * dense(p["down"], gelu(dense(p["up"], norm(p["norm2"], x))))
    return dense(params["head"], norm(params["norm"], x).mean(1))


TINY_VIT = {"image_shape": (4, 6, 2), "num_classes": 3, "patch": 2, "width": 6, "heads": 3, "depth": 2, "mlp_ratio": 2}


def test_vit_is_its_definition():
    model = build_model("vit", dtype=jnp.float64, **TINY_VIT)
    params, stats = filled(model)
    x = images((4, 6, 2))
    logits, _ = jax.jit(model.apply, static_argnames="train")(params, stats, x, train=False)
    expected = np_vit(params, x, 2, 3, [(1, 1), (1, 1)])
    assert np.ptp(expected, axis=0).min() > 1e-3
    np.testing.assert_allclose(logits, expected, rtol=1e-10, atol=1e-12)


# Randomness


def test_stochastic_depth_drops_branches_per_image_and_keeps_the_mean():
    rate, n = 0.6, 400
    model = build_model("vit", dtype=jnp.float64, stochastic_depth=rate, **TINY_VIT)
    params, stats = filled(model)
    x = images((4, 6, 2), n)
    logits, _ = jax.jit(model.apply, static_argnames="train")(params, stats, x, train=True, key=jax.random.key(3))
    keep = [1 - rate / 2, 1 - rate / 2, 1 - rate, 1 - rate]  # the rate grows linearly to the last block
    cases = list(itertools.product((0, 1), repeat=4))
    scaled = [[bit / k for bit, k in zip(bits, keep, strict=True)] for bits in cases]
    outcomes = np.stack([np_vit(params, x, 2, 3, [f[:2], f[2:]]) for f in scaled])
    near = np.isclose(outcomes, np.asarray(logits), rtol=1e-9, atol=1e-11).all(-1)
    assert (near.sum(0) == 1).all()  # every image is exactly one of the 16 outcomes
    kept = np.array(cases)[near.argmax(0)].mean(0)
    sigma = np.sqrt(np.array(keep) * (1 - np.array(keep)) / n)
    assert (np.abs(kept - keep) < 4 * sigma).all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit", {"width": 6, "heads": 2, "depth": 1, "dropout": 0.3}),
        ("wide_resnet", {"widen": 1, "dropout": 0.3}),
    ],
)
def test_dropout_comes_from_the_key_alone(name, options):
    model = build_model(name, image_shape=(8, 8, 1), num_classes=3, **options)
    params, stats = jax.tree.map(np.float32, filled(model))
    x = jnp.asarray(images((8, 8, 1)), jnp.float32)
    train = jax.jit(lambda key: model.apply(params, stats, x, train=True, key=key)[0])
    first, again, other = (np.asarray(train(jax.random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    with pytest.raises(ValueError, match=r"key is None.*pass key="):
        model.apply(params, stats, x, train=True)


def test_a_model_without_randomness_needs_no_key():
    model = build_model("mlp", image_shape=(2, 2, 1), num_classes=3, widths=(4,))
    params, stats = model.init(jax.random.key(0))
    x = jnp.ones((1, 2, 2, 1), jnp.float32)
    with_key, _ = model.apply(params, stats, x, train=True, key=jax.random.key(0))
    np.testing.assert_array_equal(with_key, model.apply(params, stats, x, train=True)[0])


# Many models at once, and fewer bits


def test_vmap_over_seeds_equals_one_by_one():
    model = build_model("resnet", image_shape=(4, 4, 1), num_classes=3, blocks=(1,), width=2, dtype=jnp.float64)
    pairs = [filled(model, seed) for seed in (0, 1)]
    params, stats = jax.tree.map(lambda *xs: jnp.stack(xs), *pairs)
    x = images((4, 4, 1))
    run = lambda p, s: model.apply(p, s, x, train=True)
    together = jax.jit(jax.vmap(run))(params, stats)
    alone = jax.tree.map(lambda *xs: jnp.stack(xs), *[run(*pair) for pair in pairs])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), together, alone)


def test_bfloat16_is_near_float32():
    narrow, full = (
        build_model("resnet", image_shape=(8, 8, 1), num_classes=3, blocks=(1,), width=4, dtype=dtype)
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    params, stats = jax.tree.map(np.float32, filled(full))
    x = jnp.asarray(images((8, 8, 1)), jnp.float32)
    rough, exact = (np.asarray(m.apply(params, stats, x, train=True)[0]) for m in (narrow, full))
    assert not np.array_equal(rough, exact)
    np.testing.assert_allclose(rough, exact, atol=0.03 * np.abs(exact).max())
