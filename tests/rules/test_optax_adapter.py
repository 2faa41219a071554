"""A rule and an optimizer as one transformation, against the two used by hand, alone and inside of others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import RULES, build, make_problem
from test_conformance import trees_close, trees_equal

import looksam

every_rule = pytest.mark.parametrize("name", RULES)


@every_rule
@pytest.mark.parametrize("static", [False, True])
def test_equals_rule_and_optimizer_by_hand(name, static):
    problem, rule = make_problem(), build(name)
    base = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.05, momentum=0.9))
    tx, grad = looksam.as_optimizer(rule, base), jax.grad(problem.loss)

    @functools.partial(jax.jit, static_argnums=2)
    def wrapped(params, state, refresh):
        updates, state = tx.update(grad(params), state, params, grad_fn=lambda w, _: grad(w), refresh=refresh)
        return optax.apply_updates(params, updates), state

    @functools.partial(jax.jit, static_argnums=3)
    def by_hand(params, state, opt_state, refresh):
        _, grads, state, _ = rule.gradient(jax.value_and_grad(problem.loss), params, state, refresh=refresh)
        updates, opt_state = base.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), state, opt_state

    params, state = problem.params, tx.init(problem.params)
    hand = (problem.params, rule.init(problem.params), base.init(problem.params))
    for i in range(7):
        refresh = rule.refreshes(i) if static else None
        params, state = wrapped(params, state, refresh)
        hand = by_hand(*hand, refresh)
    trees_close((params, state.rule, state.base), hand, 1e-13)


@every_rule
def test_grad_fn_is_called_once_on_refresh_and_never_on_reuse(name):
    problem, rule = make_problem(), build(name)
    tx, calls = looksam.as_optimizer(rule, optax.sgd(0.1)), []

    def grad_fn(params, index):
        calls.append(index)
        return params

    state = tx.init(problem.params)
    for refresh in (True, False, None):
        tx.update(problem.params, state, problem.params, grad_fn=grad_fn, refresh=refresh)
        expected = [] if refresh is False else [0]
        assert calls == expected
        calls.clear()
    trees_equal(tx.update(problem.params, state, problem.params, refresh=False)[1].base, state.base)


def test_other_arguments_reach_the_optimizer():
    seen = {}

    def update(updates, state, params=None, **extra):
        seen.update(extra)
        return updates, state

    problem = make_problem()
    base = optax.GradientTransformationExtraArgs(lambda params: (), update)
    tx = looksam.as_optimizer(looksam.sam(0.1), base)
    tx.update(problem.params, tx.init(problem.params), problem.params, grad_fn=lambda w, _: w, value=1.5)
    assert seen == {"value": 1.5}


@pytest.mark.parametrize("full", [False, True])
def test_the_state_has_the_info_of_the_last_step(full):
    problem, rule = make_problem(), looksam.look_sam(0.1, k=2)
    tx, value_and_grad = looksam.as_optimizer(rule, optax.sgd(0.0), full_info=full), jax.value_and_grad(problem.loss)
    grad_fn = lambda w, _: value_and_grad(w)[1]
    step = jax.jit(lambda g, state: tx.update(g, state, problem.params, grad_fn=grad_fn)[1])
    state, rule_state = tx.init(problem.params), rule.init(problem.params)
    for _ in range(3):
        state = step(grad_fn(problem.params, 0), state)
        _, _, rule_state, info = rule.gradient(value_and_grad, problem.params, rule_state)
        trees_close(state.info, info if full else (info.refreshed, info.fell_back), 1e-12)
        assert (state.info.cosine is None) != full
    assert step._cache_size() == 1  # the first state has the dtypes of all others
    overflowing = lambda w, _: jax.tree.map(lambda x: x * np.inf, w)
    _, state = tx.update(problem.params, state, problem.params, grad_fn=overflowing, refresh=True)
    assert state.info.fell_back and state.info is optax.tree.get(state, "info")


# --- inside of other transformations ------------------------------------------------------------------------------

SGD = functools.partial(optax.sgd, 0.05, momentum=0.9)
LOOK_SAM = functools.partial(looksam.look_sam, 0.1, k=3)


def mask(params):
    return {name: name != "matrix" for name in params}


def labels(params):
    return {name: "slow" if name == "matrix" else "fast" for name in params}


def with_settings(learning_rate, rho):
    return looksam.as_optimizer(looksam.look_sam(rho, k=3), optax.sgd(learning_rate, momentum=0.9))


INSIDE = {  # base optimizers
    "chain": lambda: optax.chain(optax.clip_by_global_norm(0.5), SGD()),
    "masked": lambda: optax.masked(SGD(), mask),
    "multi_transform": lambda: optax.multi_transform({"slow": optax.sgd(0.01), "fast": SGD()}, labels),
    "flatten": lambda: optax.flatten(SGD()),
}
AROUND = {  # transformations of as_optimizer(LOOK_SAM(), SGD()), and the base optimizer of a loop with the same steps
    "chain": (lambda tx: optax.chain(tx, optax.scale(0.5)), lambda: optax.chain(SGD(), optax.scale(0.5))),
    "apply_if_finite": (lambda tx: optax.apply_if_finite(tx, 3), SGD),
    "inject_hyperparams": (lambda _: optax.inject_hyperparams(with_settings)(learning_rate=0.05, rho=0.1), SGD),
}
BOTH = [(f"{name} inside", lambda base: looksam.as_optimizer(LOOK_SAM(), base), make) for name, make in INSIDE.items()]
BOTH += [
    (f"{name} around", lambda _, around=around: around(looksam.as_optimizer(LOOK_SAM(), SGD())), make)
    for name, (around, make) in AROUND.items()
]


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("combine", "make"), [case[1:] for case in BOTH], ids=[case[0] for case in BOTH])
def test_transformations_inside_and_around_are_those_of_a_plain_loop(combine, make):
    problem, base, rule = make_problem(), make(), LOOK_SAM()
    tx = combine(base)
    grad = jax.grad(problem.loss)

    @jax.jit
    def wrapped(params, state):
        updates, state = tx.update(grad(params), state, params, grad_fn=lambda w, _: grad(w))
        return optax.apply_updates(params, updates), state

    @jax.jit
    def by_hand(params, state, opt_state):
        _, grads, state, _ = rule.gradient(jax.value_and_grad(problem.loss), params, state)
        updates, opt_state = base.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), state, opt_state

    params, state = problem.params, tx.init(problem.params)
    hand = (problem.params, rule.init(problem.params), base.init(problem.params))
    for _ in range(5):
        params, state = wrapped(params, state)
        hand = by_hand(*hand)
    trees_close(params, hand[0], 1e-12)
    assert int(optax.tree.get(state, "rule").count) == 5


def test_apply_if_finite_leaves_a_rejected_step_out():
    tx = optax.apply_if_finite(looksam.as_optimizer(LOOK_SAM(), SGD()), 3)
    params = {"w": jnp.ones(2)}
    state = tx.init(params)
    for bad in (1.0, np.nan, 1.0):
        g = jax.tree.map(lambda w, bad=bad: w * bad, params)
        _, state = tx.update(g, state, params, grad_fn=lambda w, _: w)
    assert int(state.inner_state.rule.count) == 2 and int(state.total_notfinite) == 1


@pytest.mark.parametrize(
    ("around", "message"),
    [
        (lambda tx: optax.MultiSteps(tx, 4), r"optax.MultiSteps .*looksam.accumulated\(value_and_grad"),
        (lambda tx: optax.MultiSteps(optax.chain(tx), 4).gradient_transformation(), "optax.MultiSteps"),
        (lambda tx: optax.flatten(tx), r"optax.flatten .*as_optimizer\(rule, optax.flatten\(tx\)\)"),
        (lambda tx: optax.masked(tx, mask), r"parameter 'matrix' is masked.*as_optimizer\(rule, optax.masked"),
        (lambda tx: optax.multi_transform({"slow": tx, "fast": tx}, labels), "is masked: .*optax.multi_transform"),
        (lambda tx: optax.chain(optax.clip(1.0), tx), r"comes after .*as_optimizer\(rule, optax.chain"),
        (lambda tx: optax.chain(optax.clip(1.0), optax.chain(tx, optax.scale(2.0))), "comes after another"),
        (lambda tx: optax.named_chain(("clip", optax.clip(1.0)), ("sam", tx)), "comes after another"),
    ],
)
@pytest.mark.usefixtures("in_float64")
def test_transformations_around_it_that_would_be_wrong_raise(around, message):
    problem = make_problem()
    tx = around(looksam.as_optimizer(looksam.sam(0.1), SGD()))
    with pytest.raises(ValueError, match=message):
        one_step(tx, problem.params)


def one_step(tx, params):
    state = tx.init(params)
    jax.jit(lambda g, state: tx.update(g, state, params, grad_fn=lambda w, _: w))(params, state)


@pytest.mark.usefixtures("in_float64")
def test_micro_batches_inside_are_steps_of_their_own():
    """MultiSteps as the base optimizer: the mean of what the rule returns for each micro-batch."""
    rule = looksam.sam(0.1)
    tx = looksam.as_optimizer(rule, optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation())
    loss, params, parts = lambda w, x: jnp.sum(x * w**2), jnp.array([1.0, 2.0]), jnp.array([[1.0, 3.0], [2.0, 1.0]])
    state, moved = tx.init(params), params
    for x in parts:
        grad_fn = lambda w, _, x=x: jax.grad(loss)(w, x)
        updates, state = tx.update(grad_fn(moved, 0), state, moved, grad_fn=grad_fn)
        moved = optax.apply_updates(moved, updates)
    returned = [rule.gradient(jax.value_and_grad(loss), params, rule.init(params), x)[1] for x in parts]
    np.testing.assert_allclose(moved, params - (returned[0] + returned[1]) / 2, rtol=1e-6)
    assert int(state.rule.count) == 2


def test_parameters_in_the_state_can_be_found():
    """optax.tree.map_params, with which states are sharded, reaches g_v and the momentum."""
    problem, tx = make_problem(), looksam.as_optimizer(LOOK_SAM(), SGD())
    found = optax.tree.map_params(tx, lambda _: "param", tx.init(problem.params), transform_non_params=lambda _: None)
    assert set(jax.tree.leaves(found.rule.g_v)) == set(jax.tree.leaves(found.base)) == {"param"}
    assert found.rule.count is None and found.info.fell_back is None
