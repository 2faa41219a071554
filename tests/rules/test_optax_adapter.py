"""A rule and an optimizer as one transformation, against the two used by hand."""

import functools

import jax
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
    trees_close((params, *state), hand, 1e-13)


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
