"""A rule as an object: what it shows, that it can be pickled, and the check of ``refresh``."""

import functools
import pickle

import jax
import jax.numpy as jnp
import optax
import pytest
from problems import RULES, build, make_problem

import looksam
from looksam import rules


def is_matrix(path):
    return path == "matrix"


def decayed(count):
    return 0.1 / (1 + jnp.asarray(count, jnp.float64))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (looksam.look_sam(0.1), "look_sam(rho=0.1, alpha=0.7, k=5)"),
        (looksam.look_sam(rho=0.1, k=2, p=2.0, start=3), "look_sam(rho=0.1, alpha=0.7, k=2, start=3)"),
        (looksam.sam(0.2, p=3.0, groups="device"), "sam(rho=0.2, p=3.0, groups='device')"),
        (looksam.sam(0.2, perturb=is_matrix), "sam(rho=0.2, perturb=is_matrix)"),
        (looksam.layer_sam(1.0, scaling="literal"), "layer_sam(rho=1.0, scaling='literal')"),
        (looksam.msam(0.3, stop=9).differentiable(), "msam(rho=0.3, momentum=0.9, stop=9).differentiable()"),
        (looksam.gsam(0.1, 0.4).checked(), "gsam(rho=0.1, alpha=0.4).checked()"),
        (
            rules.compose(rules.global_perturbation(), 0.1, perturb=is_matrix),
            "compose(perturbation=GlobalPerturbation(p=2.0), rho=0.1, perturb=is_matrix)",
        ),
    ],
)
def test_repr_shows_the_call(rule, text):
    assert repr(rule) == text


PICKLED = {name: functools.partial(build, name) for name in RULES} | {
    "schedule and predicate": functools.partial(build, "look_sam", rho=decayed, alpha=decayed, perturb=is_matrix),
    "composition": lambda: rules.compose(
        rules.elementwise_perturbation(eta=0.1, scale=is_matrix),
        0.3,
        schedule=rules.every(2, start=1),
        refresh=rules.gsam_gradient(0.4),
        between=rules.reused_g_v(0.4, jnp.bfloat16),
    ).differentiable(),
    "array scalar": lambda: looksam.sam(jnp.float32(0.1)),
}


@pytest.mark.parametrize("name", PICKLED)
def test_pickled_rules_are_the_same_program(name):
    problem, rule = make_problem(), PICKLED[name]()
    other = pickle.loads(pickle.dumps(rule))
    assert repr(other) == repr(rule) and type(other) is type(rule)

    def program(rule):
        step = functools.partial(rule.gradient, jax.value_and_grad(problem.loss))
        return str(jax.make_jaxpr(step)(problem.params, rule.init(problem.params)))

    assert program(other) == program(rule)


def test_what_cannot_be_pickled_is_named():
    rule = looksam.sam(optax.linear_schedule(0.1, 0.0, 100))
    with pytest.raises((AttributeError, pickle.PicklingError), match="schedule"):
        pickle.dumps(rule)


@pytest.mark.parametrize("name", ["sam", "look_sam", "msam"])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
def test_a_refresh_that_disagrees_with_the_count_is_found(name, traced):
    problem, rule = make_problem(), build(name).checked()
    step = lambda state, refresh: rule.gradient(
        jax.value_and_grad(problem.loss), problem.params, state, refresh=refresh
    )[2]
    step = jax.jit(step, static_argnums=1) if traced else step
    state = rule.init(problem.params)
    for i in range(4):
        state = step(state, rule.refreshes(i))
    assert int(state.count) == 4
    due = rule.refreshes(4)
    says = "refreshes" if due else "does not refresh"
    error = jax.errors.JaxRuntimeError if traced else ValueError
    with pytest.raises(error, match=f"refresh={not due} on step 4.*{says}"):
        jax.block_until_ready(step(state, not due))
    step(state, None)  # decided by the count itself
    build(name).gradient(jax.value_and_grad(problem.loss), problem.params, state, refresh=not due)  # not checked
