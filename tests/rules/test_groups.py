"""m-sharpness and accumulation in the rules, against groups and micro-batches taken by hand in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo_collectives import collectives
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from problems import LOOK_RULES, TWO_GRADIENT_RULES, build, reference

import looksam

ROWS, FEATURES, WIDTH = 24, 6, 5
SIZE = FEATURES * WIDTH + WIDTH
LAYERS = [slice(0, FEATURES * WIDTH), slice(FEATURES * WIDTH, SIZE)]
RNG = np.random.default_rng(3)
START = {"in": RNG.normal(size=(FEATURES, WIDTH)), "out": RNG.normal(size=WIDTH)}
X, Y = RNG.normal(size=(ROWS, FEATURES)), RNG.normal(size=ROWS)


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2)


def gradient(w, rows):
    """∇ of the loss over some rows, by hand."""
    kernel, out = w[LAYERS[0]].reshape(FEATURES, WIDTH), w[LAYERS[1]]
    hidden = np.tanh(X[rows] @ kernel)
    slope = 2 * (hidden @ out - Y[rows]) / len(X[rows])
    inner = X[rows].T @ (slope[:, None] * out * (1 - hidden**2))
    return np.concatenate([inner.ravel(), hidden.T @ slope])


def grouped_step(oracle, w, groups):
    """Each group is perturbed along its own gradient; from there on the means take the place of g and g_s."""
    rows = np.split(np.arange(ROWS), groups)
    each = [gradient(w, r) for r in rows]
    g_s = np.mean([gradient(w + oracle.epsilon(g, w), r) for g, r in zip(each, rows, strict=True)], axis=0)
    first = iter([np.mean(each, axis=0), g_s])
    return oracle.step(lambda _: next(first), w)


def flat(tree):
    return np.concatenate([np.ravel(tree[name]) for name in ("in", "out")])


@pytest.mark.parametrize("form", ["static", "traced"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("name", TWO_GRADIENT_RULES)
def test_groups_are_as_by_hand(name, groups, form):
    rule, oracle = build(name, groups=groups), reference(name, layers=LAYERS)
    step = jax.jit(
        lambda params, state, refresh: rule.gradient(jax.value_and_grad(loss), params, state, X, Y, refresh=refresh),
        static_argnums=2,
    )
    params = jax.tree.map(jnp.asarray, START)
    state = rule.init(params)
    for i in range(5):
        value, grads, state, info = step(params, state, rule.refreshes(i) if form == "static" else None)
        expected, (norm_g, norm, norm_v, cosine, refreshed) = grouped_step(oracle, flat(params), groups)
        np.testing.assert_allclose(flat(grads), expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(value, loss(params, X, Y), rtol=1e-12)
        seen = info.grad_norm, info.returned_norm, info.g_v_norm, info.cosine
        np.testing.assert_allclose(seen, (norm_g, norm, norm_v, cosine), rtol=1e-9)
        assert bool(info.refreshed) == refreshed
        params = jax.tree.map(lambda w, g: w - 0.05 * g, params, grads)


def test_groups_differ_from_one_perturbation():
    one, four = (looksam.sam(0.5, groups=n) for n in (None, 4))
    params = jax.tree.map(jnp.asarray, START)
    together, apart = (flat(r.gradient(jax.value_and_grad(loss), params, r.init(params), X, Y)[1]) for r in (one, four))
    assert np.max(np.abs(together - apart)) > 1e-3


@pytest.mark.parametrize("name", ["sam", *LOOK_RULES])
def test_a_group_for_each_device_of_the_mesh(name):
    """Under jit over global arrays the groups live on the devices: no more is sent than the two gradients."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rule, oracle = build(name, groups="device"), reference(name, layers=LAYERS)
    params = jax.device_put(START, NamedSharding(mesh, P()))
    batch = jax.device_put((X, Y), NamedSharding(mesh, P("data")))
    state = rule.init(params)
    with jax.set_mesh(mesh):
        step = jax.jit(lambda *a: rule.gradient(jax.value_and_grad(loss), *a, refresh=True)[:3])
        program = step.lower(params, state, *batch).compile()
        _, grads, _ = program(params, state, *batch)
    np.testing.assert_allclose(flat(grads), grouped_step(oracle, flat(START), 8)[0], rtol=1e-10, atol=1e-12)
    sent = sum(c.bytes for c in collectives(program.as_text()))
    assert sent <= 2 * 8 * SIZE + 64


@pytest.mark.parametrize("name", TWO_GRADIENT_RULES)
@pytest.mark.parametrize("microbatches", [2, 12])
def test_accumulated_steps_are_those_of_the_whole_batch(name, microbatches):
    rule, oracle = build(name), reference(name, layers=LAYERS)
    parts = looksam.accumulated(jax.value_and_grad(loss), microbatches)
    step = jax.jit(lambda *args: rule.gradient(parts, *args, X, Y))
    params = jax.tree.map(jnp.asarray, START)
    state = rule.init(params)
    for _ in range(4):
        value, grads, state, _ = step(params, state)
        expected, _ = grouped_step(oracle, flat(params), 1)
        np.testing.assert_allclose(flat(grads), expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(value, loss(params, X, Y), rtol=1e-12)
        params = jax.tree.map(lambda w, g: w - 0.05 * g, params, grads)


def test_low_precision_parts_are_summed_in_float32():
    """A thousand ones and a small number each: in bfloat16 the sum would stop growing at 256."""
    value_and_grad = jax.value_and_grad(lambda w, x: jnp.mean(w * x))
    ones = jnp.ones(1000, jnp.bfloat16)
    value, grad = looksam.accumulated(value_and_grad, 1000)(jnp.bfloat16(1.0), ones)
    assert float(value) == float(grad) == 1.0 and grad.dtype == jnp.bfloat16


def test_which_arguments_carry_the_batch():
    """A scalar that all parts share, an auxiliary mean, and nested batches."""

    def scaled(params, scale, batch):
        error = (batch["x"] @ params - batch["y"]) * scale
        return jnp.mean(error**2), {"mean": jnp.mean(error)}

    whole = jax.value_and_grad(scaled, has_aux=True)
    args = jnp.ones(FEATURES), jnp.float64(3.0), {"x": jnp.asarray(X), "y": jnp.asarray(Y)}
    expected = whole(*args)
    got = looksam.accumulated(whole, 3, batch_argnums=(1,))(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), got, expected)
    rule = looksam.sam(0.1, groups=3, batch_argnums=(1,))
    value, *_ = rule.gradient(whole, args[0], rule.init(args[0]), *args[1:])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), value, expected[0])


PARAMS = jnp.ones(FEATURES)
PLAIN = jax.value_and_grad(lambda w, x, *rest: jnp.mean(x @ w))


def perturbed_step(rule, *args, of=PLAIN):
    return rule.gradient(of, PARAMS, rule.init(PARAMS), *args)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: looksam.sam(0.1, groups=0), ValueError, "groups=0 .*groups >= 1"),
        (lambda: looksam.look_sam(0.1, groups=2.0), TypeError, "groups=2.0 is not an int"),
        (lambda: looksam.layer_sam(0.1, groups="host"), ValueError, "groups='host' is unknown; .*'device'"),
        (lambda: looksam.look_layer_sam(0.1, groups=True), TypeError, "groups=True"),
        (lambda: looksam.accumulated(PLAIN, 0), ValueError, "microbatches=0 .*>= 1"),
        (lambda: looksam.accumulated(PLAIN, "2"), TypeError, "microbatches='2' is not an int"),
        (
            lambda: perturbed_step(looksam.sam(0.1, groups=5), X),
            ValueError,
            "argument 0 has 24 rows, not a multiple of 5,",
        ),
        (
            lambda: perturbed_step(looksam.sam(0.1, groups=2), X, 3.0),
            ValueError,
            "argument 1 has no axis .*batch_argnums",
        ),
        (lambda: perturbed_step(looksam.sam(0.1, groups=2, batch_argnums=(1,)), X), ValueError, "batch_argnums has 1"),
        (
            lambda: perturbed_step(
                looksam.sam(0.1, groups=2),
                X,
                of=jax.value_and_grad(lambda w, x: (jnp.mean(x @ w), jnp.argmax(x @ w)), has_aux=True),
            ),
            TypeError,
            "are averaged, and its .* is int",
        ),
        (
            lambda: looksam.sam(0.1, groups=2).transform(PARAMS, lambda w: w, PARAMS, looksam.sam(0.1).init(PARAMS)),
            ValueError,
            "groups=2, and transform sees no batch",
        ),
    ],
)
def test_bad_groups_and_parts(call, error, message):
    with pytest.raises(error, match=message):
        call()
