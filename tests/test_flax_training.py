"""Rules for Flax modules: what the passes change in a module, and wrong ways that raise an error."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import looksam

RANDOM = np.random.default_rng(1)
X, Y = jnp.asarray(RANDOM.normal(size=(16, 4))), jnp.asarray(RANDOM.normal(size=(16, 2)))

pytestmark = pytest.mark.usefixtures("in_float64")


class Net(nnx.Module):
    def __init__(self, rngs):
        options = {"param_dtype": jnp.float64, "rngs": rngs}
        self.first, self.last = nnx.Linear(4, 8, **options), nnx.Linear(8, 2, **options)
        self.mean, self.dropout = nnx.BatchStat(jnp.zeros(8)), nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x):
        hidden = self.first(x)
        mean = jnp.mean(hidden, axis=0)
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * mean  # as in BatchNorm, whose statistics are float32 alone
        hidden = hidden - mean
        if not hasattr(self, "seen"):  # a variable that the first pass creates
            self.seen = nnx.Intermediate(jnp.zeros(()))
        self.seen[...] = jnp.mean(hidden**2)
        return self.last(self.dropout(jnp.tanh(hidden)))


def loss_fn(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def leaves(tree):
    numbers = [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(tree)
    ]
    return [np.asarray(x) for x in numbers]


def equal(found, expected, tolerance=0.0):
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("static", [True, False], ids=["static", "traced"])
@pytest.mark.parametrize("make", [looksam.sam, looksam.look_sam, looksam.msam])
def test_parameters_stay_and_the_rest_is_of_the_clean_pass(make, static):
    model, clean = Net(nnx.Rngs(0)), Net(nnx.Rngs(0))
    rule = looksam.NNXRule(make(0.2), model)
    step = nnx.jit(
        lambda model, rule, x, y, refresh: rule.value_and_grad(loss_fn, refresh=refresh)(model, x, y),
        static_argnums=4,
    )
    for i in range(2):  # the second reuses g_v, and MSAM begins to move
        loss, grads = step(model, rule, X, Y, rule.rule.refreshes(i) if static else None)
        expected = nnx.jit(loss_fn)(clean, X, Y)
        equal(nnx.state(model, nnx.Param), nnx.state(clean, nnx.Param))
        if make is not looksam.msam or i == 0:
            equal(loss, expected, 1e-14)
            equal(nnx.state(model), nnx.state(clean), 1e-14)  # statistics, intermediates, counts of keys
        assert jax.tree.structure(grads) == jax.tree.structure(nnx.state(model, nnx.Param))
        assert int(nnx.as_pure(rule.state).count) == i + 1


def test_a_step_of_sam_by_hand():
    """First g at w, then ε = ρ g/‖g‖, and g_s at w + ε with the statistics and the dropout mask of the first pass."""
    model = Net(nnx.Rngs(3))
    grads = [nnx.grad(loss_fn)(nnx.clone(model), X, Y)]
    norm = np.sqrt(sum(np.sum(g**2) for g in leaves(grads[0])))
    moved = nnx.clone(model)
    nnx.update(moved, jax.tree.map(lambda w, g: w + 0.2 * g / norm, nnx.state(model, nnx.Param), grads[0]))
    grads.append(nnx.grad(loss_fn)(moved, X, Y))
    rule = looksam.NNXRule(looksam.sam(0.2), model)
    (_, aux), found = rule.value_and_grad(lambda *args: (loss_fn(*args), {"rows": len(X)}), has_aux=True)(model, X, Y)
    equal(found, grads[1], 1e-13)
    np.testing.assert_allclose(rule.info.grad_norm, norm, rtol=1e-13)
    assert aux == {"rows": len(X)} and not rule.info.fell_back


def test_only_chosen_variables_are_parameters():
    model = Net(nnx.Rngs(0))
    wrt = nnx.All(nnx.Param, nnx.PathContains("last"))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=wrt)
    rule = looksam.NNXRule(looksam.look_sam(0.2), model, wrt=wrt)
    before = nnx.as_pure(nnx.state(model, nnx.Param))
    _, grads = rule.value_and_grad(loss_fn)(model, X, Y)
    optimizer.update(model, grads)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, nnx.as_pure(nnx.state(model, nnx.Param)))
    assert changed["last"]["kernel"] and changed["last"]["bias"] and sum(jax.tree.leaves(changed)) == 2


def test_wrong_ways_name_the_right_one():
    model, rule = Net(nnx.Rngs(0)), looksam.sam(0.2)
    with pytest.raises(TypeError, match="params is a Net, a module of Flax NNX.*looksam.NNXRule"):
        rule.init(model)
    params = nnx.state(model, nnx.Param)
    with pytest.raises(TypeError, match="looksam.NNXRule"):
        rule.gradient(nnx.value_and_grad(loss_fn), model, rule.init(params), X, Y)

    def in_place(params, x, y):
        nnx.update(model, params)
        return nnx.value_and_grad(loss_fn)(model, x, y)

    with pytest.raises(ValueError, match="changed params in place.*looksam.NNXRule"):
        rule.gradient(in_place, params, rule.init(params), X, Y)
    optimizer = nnx.Optimizer(model, looksam.as_optimizer(rule, optax.sgd(0.1)), wrt=nnx.Param)
    with pytest.raises(ValueError, match="grad_fn is None.*looksam.NNXRule"):
        optimizer.update(model, params)
    with pytest.raises(ValueError, match="sam\\(rho=0.2, groups=2\\) has groups"):
        looksam.NNXRule(looksam.sam(0.2, groups=2), model)
    with pytest.raises(ValueError, match="Net has no variables of wrt"):
        looksam.NNXRule(rule, model, wrt=nnx.Cache)


def test_train_state_of_linen_passes_grad_fn_and_refresh():
    grad = jax.grad(lambda params: jnp.sum(jnp.array([1.0, 3.0]) * params["w"] ** 2))
    tx = looksam.as_optimizer(looksam.look_sam(0.5, k=3), optax.sgd(0.1))
    start = {"w": jnp.array([3.0, 4.0])}
    state = looksam.TrainState.create(apply_fn=None, params=start, tx=tx)
    params, opt_state = start, tx.init(start)
    for i in range(4):
        grad_fn = None if i % 3 else lambda params, _: grad(params)
        state = state.apply_gradients(grads=grad(state.params), grad_fn=grad_fn, refresh=i % 3 == 0)
        updates, opt_state = tx.update(grad(params), opt_state, params, grad_fn=grad_fn, refresh=i % 3 == 0)
        params = optax.apply_updates(params, updates)
    equal((state.params, state.opt_state), (params, opt_state))
    assert int(state.step) == 4 and state.tx is tx
    with pytest.raises(ValueError, match="grad_fn is None.*looksam.TrainState"):
        state.apply_gradients(grads=grad(state.params))
