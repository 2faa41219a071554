"""Every rule against the float64 oracle, over more than three cycles, with three optimizers."""

import functools
import itertools

import jax
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import (
    LAYER_RULES,
    LOOK_RULES,
    OPTIMIZERS,
    P_RULES,
    RULES,
    TWO_GRADIENT_RULES,
    build,
    make_problem,
    reference,
)

SCALINGS = ("normalized", "literal", "adaptive")
VARIANTS = [
    (name, p, scaling)
    for name in RULES
    for p in ((2.0, 3.0, np.inf) if name in P_RULES else (None,))
    for scaling in (SCALINGS if name in LAYER_RULES else (None,))
]

TWO_GRADIENTS = [variant for variant in VARIANTS if variant[0] in TWO_GRADIENT_RULES]


def configure(name, p=None, scaling=None, leaves=()):
    options = ({"p": p} if p else {}) | ({"scaling": scaling} if scaling else {})
    return build(name, **options), reference(name, layers=list(leaves), **options)


def close(ours, reference):
    np.testing.assert_allclose(ours, reference, rtol=1e-10, atol=1e-10)


def run_both(problem, rule, oracle, optimizer, steps, static):
    make_tx, make_reference = OPTIMIZERS[optimizer]
    tx, reference = make_tx(0.05), make_reference(0.05)
    value_and_grad = jax.value_and_grad(problem.loss)

    @functools.partial(jax.jit, static_argnums=3)
    def step(params, state, opt_state, refresh):
        _, grads, state, info = rule.gradient(value_and_grad, params, state, refresh=refresh)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes dtypes; the rules do not
            updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), state, opt_state, grads, info

    params, state, opt_state = problem.params, rule.init(problem.params), tx.init(problem.params)
    w = problem.flat(params)
    for i in range(steps):
        refresh = rule.refreshes(i) if static else None
        params, state, opt_state, grads, info = step(params, state, opt_state, refresh)
        expected, expected_info = oracle.step(problem.gradient, w)
        w = reference.step(w, expected, problem.leaves)
        close(problem.flat(grads), expected)
        close(problem.flat(params), w)
        close([float(x) for x in info[:5]], expected_info)
        assert not info.fell_back


@pytest.mark.parametrize(("name", "p", "scaling"), VARIANTS)
def test_rule_with_sgdm(name, p, scaling):
    problem = make_problem()
    rule, oracle = configure(name, p, scaling, problem.leaves)
    run_both(problem, rule, oracle, "sgdm", steps=10, static=p == 2)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("name", RULES)
def test_rule_with_adaptive_optimizers(name, optimizer):
    problem = make_problem(seed=1)
    rule, oracle = configure(name, scaling="normalized" if name in LAYER_RULES else None, leaves=problem.leaves)
    run_both(problem, rule, oracle, optimizer, steps=10, static=name in LOOK_RULES)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_layers_that_span_several_tensors(scaling):
    problem = make_problem(seed=2)
    rule = build("look_layer_sam", scaling=scaling, layers=lambda path: path.split("/")[0] == "nested")
    # jax.tree order: empty, matrix, nested/scalar, nested/vector, unseen, zero
    flat, (empty, matrix, scalar, vector, unseen, zero) = np.arange(len(problem.seen)), problem.leaves
    nested = np.concatenate([flat[scalar], flat[vector]])
    rest = np.concatenate([flat[part] for part in (empty, matrix, unseen, zero)])
    oracle = reference("look_layer_sam", scaling=scaling, layers=[nested, rest])
    run_both(problem, rule, oracle, "sgdm", steps=7, static=False)


sizes = st.one_of(
    st.just(()),
    st.integers(0, 4).map(lambda n: (n,)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
entries = st.one_of(st.just(0.0), st.floats(1e-4, 10.0), st.floats(-10.0, -1e-4))


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), variant=st.sampled_from(TWO_GRADIENTS), shapes=st.lists(sizes, min_size=1, max_size=3))
def test_one_cycle_on_any_gradients(data, variant, shapes):
    """g, g_s and w are drawn directly: zeros, empty leaves, scalars and 1e-4 next to 10."""
    name, p, scaling = variant
    count = sum(int(np.prod(shape)) for shape in shapes)

    def draw():
        return np.array(data.draw(st.lists(entries, min_size=count, max_size=count)), np.float64)

    cuts = np.cumsum([0] + [int(np.prod(shape)) for shape in shapes])
    leaves = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    w, g, g_s, next_g = draw(), draw(), draw(), draw()
    rule, oracle = configure(name, p, scaling, leaves)

    def tree(flat):
        return [jax.numpy.asarray(flat[leaf].reshape(shape)) for leaf, shape in zip(leaves, shapes, strict=True)]

    def flat(leaves):
        return np.concatenate([np.ravel(x) for x in leaves]) if leaves else np.zeros(0)

    seen = []
    answers = iter([g, g_s, next_g])

    def oracle_gradient(weights):
        seen.append(weights)
        return next(answers)

    params = tree(w)
    perturbed = []

    def gradient_at(weights):
        perturbed.append(weights)
        return tree(g_s)

    grads, state, info = rule.transform(tree(g), gradient_at, params, rule.init(params), refresh=True)
    expected, expected_info = oracle.step(oracle_gradient, w)
    close(flat(perturbed[0]), seen[1])
    close(flat(grads), expected)
    close([float(x) for x in info[:5]], expected_info)
    if name in LOOK_RULES:
        grads, state, info = rule.transform(tree(next_g), gradient_at, params, state, refresh=False)
        expected, expected_info = oracle.step(oracle_gradient, w)
        close(flat(grads), expected)
        assert np.all(np.isfinite([float(x) for x in info]))
