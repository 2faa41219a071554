"""The code of docs/jax.md, run as printed there, compared with a plain loop over the same batches."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import recipes

import looksam

PAGE = "jax.md"
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(48, 6)).astype("float32"), RANDOM.integers(0, 3, 48)
BATCHES = list(zip(np.split(X, 6), np.split(Y, 6), strict=True))  # six: the second cycle begins
KERNELS = {name: RANDOM.normal(size=shape).astype("float32") for name, shape in (("a", (6, 16)), ("b", (16, 3)))}
NAMES = {"jax": jax, "looksam": looksam, "optax": optax, "pickle": pickle, "batches": BATCHES}

pytestmark = pytest.mark.usefixtures("as_users_run_it")


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def loss_fn(params, x, y):
    return cross_entropy(jax.nn.relu(x @ params["a"]) @ params["b"], y)


def run(heading, number=0, **names):
    """Executes a block of a section, and returns the names it defined."""
    return recipes.run(recipes.blocks(PAGE, heading)[number], PAGE, NAMES | names)


def with_arrays(**names):
    return {"params": jax.tree.map(jnp.asarray, KERNELS), "loss_fn": loss_fn} | names


def plain_loop(loss, params, *, carried=None, draws=None):
    """LookSAM-5 and AdamW on ``loss(params, *draw, x, y)``, or ``loss(params, carried, *draw, x, y)`` with aux."""
    rule, tx = looksam.look_sam(rho=0.1, k=5), optax.adamw(1e-3)
    state, opt_state = rule.init(params), tx.init(params)
    value_and_grad = jax.value_and_grad(loss, has_aux=carried is not None)
    gradient = jax.jit(
        lambda *args, refresh: rule.gradient(value_and_grad, *args, refresh=refresh), static_argnames="refresh"
    )
    for i, (batch, draw) in enumerate(zip(BATCHES, draws or [()] * len(BATCHES), strict=True)):
        args = (*draw, *batch) if carried is None else (carried, *draw, *batch)
        value, grads, state, _ = gradient(params, state, *args, refresh=rule.refreshes(i))
        carried = carried if carried is None else value[1]
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    return params if carried is None else (params, carried)


def check(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_every_block_is_run():
    counted = {heading: len(recipes.blocks(PAGE, heading)) for heading in recipes.headings(PAGE)}
    once = dict.fromkeys(("Plain JAX", "Flax NNX", "Equinox", "Haiku"), 1)
    assert counted == once | {"Optax": 2, "Flax Linen": 2, "shard_map": 2, "Looking into a rule": 2}


@pytest.mark.parametrize("heading", ["Plain JAX", "Optax", "shard_map"])
def test_loops_over_plain_arrays(heading):
    space = run(heading, **with_arrays())
    check(space["params"], plain_loop(loss_fn, with_arrays()["params"]))
    if heading == "Optax":
        assert bool(space["opt_state"].info.refreshed) and not space["opt_state"].info.fell_back


def test_accumulated():
    names = with_arrays(rule=looksam.look_sam(rho=0.1, k=5), x=X, y=Y)
    rule_state = names["rule"].init(names["params"])
    space = run("Optax", 1, rule_state=rule_state, **names)
    expected = names["rule"].gradient(jax.value_and_grad(loss_fn), names["params"], rule_state, X, Y)
    check((space["loss"], space["grads"]), expected[:2])


def test_the_mean_over_devices_without_checks_of_varying_values():
    names = with_arrays()
    page = recipes.blocks(PAGE, "shard_map")
    without = (
        page[0]
        .replace("mesh=mesh,", "mesh=mesh, check_vma=False,")
        .replace("jax.value_and_grad(global_loss)", "value_and_grad")
    )
    space = recipes.run(page[1] + without, PAGE, NAMES | names)
    check(space["params"], plain_loop(loss_fn, names["params"]))


def test_nnx():
    from flax import nnx

    space = run("Flax NNX")
    graph, params, rest = nnx.split(space["Net"](nnx.Rngs(0)), nnx.Param, ...)

    def loss(params, rest, x, y):
        model = nnx.merge(graph, params, rest, copy=True)
        return space["loss_fn"](model, x, y), nnx.state(model, nnx.Not(nnx.Param))

    expected = nnx.merge_state(*plain_loop(loss, params, carried=rest))
    found = jax.tree.map(as_numbers, nnx.state(space["model"]))
    check(found, jax.tree.map(as_numbers, expected))
    assert bool(space["rule"].info.refreshed)


def as_numbers(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def test_linen():
    space = run("Flax Linen")
    variables = space["Net"]().init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, BATCHES[0][0])
    keys = [(jax.random.fold_in(jax.random.key(2), i),) for i in range(len(BATCHES))]
    expected = plain_loop(space["loss_fn"], variables["params"], carried=variables["batch_stats"], draws=keys)
    check((space["state"].params, space["state"].batch_stats), expected)


def test_linen_with_one_optimizer():
    import flax.linen as nn

    model = nn.Dense(3)
    params = model.init(jax.random.key(0), X)["params"]
    loss = lambda params, x, y: cross_entropy(model.apply({"params": params}, x), y)
    space = run("Flax Linen", 1, model=model, params=params, loss_fn=loss)
    check(space["state"].params, plain_loop(loss, params))
    assert int(space["state"].step) == len(BATCHES)


def test_equinox():
    equinox = pytest.importorskip("equinox")
    space = run("Equinox")
    model = equinox.nn.MLP(6, 3, width_size=16, depth=1, key=jax.random.key(0))
    weights = [array for layer in model.layers for array in (layer.weight, layer.bias)]

    def loss(weights, x, y):
        return cross_entropy(jax.nn.relu(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3], y)

    check([x for layer in space["model"].layers for x in (layer.weight, layer.bias)], plain_loop(loss, weights))


def test_haiku():
    pytest.importorskip("haiku")
    space = run("Haiku")
    params = space["net"].init(jax.random.key(0), BATCHES[0][0])
    keys = [(jax.random.key(i),) for i in range(len(BATCHES))]
    check(space["params"], plain_loop(space["loss_fn"], params, draws=keys))


def test_looking_into_a_rule(capsys):
    space = run("Looking into a rule")
    assert capsys.readouterr().out.strip() == repr(space["copy"]) == "look_sam(rho=0.1, alpha=0.7, k=5, start=100)"
    space = run("Looking into a rule", 1, x=X, y=Y, **with_arrays())
    state = space["rule"].init(space["params"])
    _, _, state, info = space["step"](space["params"], state, True)
    assert bool(info.refreshed) and int(state.count) == 1
    with pytest.raises(jax.errors.JaxRuntimeError, match="refresh=True on step 1, by the count in state"):
        jax.block_until_ready(space["step"](space["params"], state, True))
