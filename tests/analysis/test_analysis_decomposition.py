"""The parts of a SAM step, their drift and their second-order prediction, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import make_problem

from looksam.analysis import components, make_drift, second_order

INF = float("inf")


def parts_by_hand(g, g_s):
    g_v = g_s - (g @ g_s) / (g @ g) * g
    return {"g": g, "g_s": g_s, "g_h": g_s - g_v, "g_v": g_v}


def sam_run(problem, steps, rho):
    """Six SAM steps, each with a minibatch of its own (a shift of the bowl's centre): components by JAX and by hand."""
    random = np.random.default_rng(8)
    params, w = problem.params, problem.flat(problem.params)
    found, expected = [], []
    take = jax.jit(lambda params, shift: components(lambda v: problem.loss(v, shift), params, rho))
    for shift in random.normal(size=steps):

        def gradient(w, shift=shift):
            return problem.gradient(w) - problem.seen * problem.curvature * shift

        g = gradient(w)
        g_s = gradient(w + rho * g / np.linalg.norm(g))
        expected.append(parts_by_hand(g, g_s))
        found.append(take(params, jnp.asarray(shift)))
        params = jax.tree.map(lambda x, d: x - 0.05 * d, params, found[-1].g_s)
        w = w - 0.05 * g_s
    return found, expected


@pytest.fixture(scope="module")
def run():
    problem = make_problem()
    return problem, *sam_run(problem, 8, 0.3)


def test_components(run):
    problem, found, expected = run
    for parts, by_hand in zip(found, expected, strict=True):
        for name, vector in by_hand.items():
            np.testing.assert_allclose(problem.flat(getattr(parts, name)), vector, rtol=1e-9, atol=1e-11)


def test_components_in_a_cube():
    problem = make_problem()
    w = problem.flat(problem.params)
    g = problem.gradient(w)
    found = jax.jit(lambda w: components(problem.loss, w, 0.2, INF))(problem.params)
    for name, vector in parts_by_hand(g, problem.gradient(w + 0.2 * np.sign(g))).items():
        np.testing.assert_allclose(problem.flat(getattr(found, name)), vector, rtol=1e-9, atol=1e-11)


def test_a_round_bowl_has_no_g_v():
    found = components(lambda w: 3 * jnp.sum(w**2), jnp.array([1.0, 2.0]), 0.5)
    assert found.g_v.tolist() == [0.0, 0.0]
    assert found.g_h.tolist() == found.g_s.tolist()


@pytest.mark.parametrize("lag", [1, 3])
def test_drift_along_a_run(run, lag):
    problem, found, expected = run
    drift = make_drift(lag)
    state = drift.init(problem.params)
    for t, parts in enumerate(found):
        state, changes = drift.update(state, parts)
        for name in ("g", "g_s", "g_h", "g_v"):
            change, new = getattr(changes, name), expected[t][name]
            np.testing.assert_allclose(change.norm, np.linalg.norm(new), rtol=1e-9)
            if t < lag:
                assert np.isnan([change.absolute, change.relative, change.cosine]).all()
                continue
            old = expected[t - lag][name]
            gap = np.linalg.norm(new - old)
            cosine = new @ old / np.linalg.norm(new) / np.linalg.norm(old)
            np.testing.assert_allclose(change.absolute, gap, rtol=1e-8)
            np.testing.assert_allclose(change.relative, gap / np.linalg.norm(new), rtol=1e-8)
            np.testing.assert_allclose(change.cosine, cosine, rtol=1e-8)


def test_drift_compiles_once_and_takes_many_runs_at_once(run):
    problem, found, _ = run
    drift = make_drift(2)
    state, many = drift.init(problem.params), jax.vmap(drift.init)(jax.tree.map(lambda x: x[None], problem.params))
    together = jax.vmap(drift.update)
    for parts in found[:4]:
        state, changes = drift.update(state, parts)
        many, of_many = together(many, jax.tree.map(lambda x: x[None], parts))
    assert drift.update._cache_size() == 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-12), changes, of_many)


def test_drift_where_a_vector_is_zero():
    drift, zero = make_drift(1), components(lambda w: jnp.sum(w**2), jnp.zeros(2), 0.1)
    state, _ = drift.update(drift.init(jnp.zeros(2)), zero)
    _, changes = drift.update(state, zero)
    assert [float(x) for x in changes.g_v] == [0, 0, 0, 0]


@pytest.mark.parametrize("lag", [0, -1])
def test_a_lag_below_one(lag):
    with pytest.raises(ValueError, match=f"lag={lag} is out of range; pass lag >= 1"):
        make_drift(lag)


def test_a_negative_radius():
    with pytest.raises(ValueError, match="rho=-1.0 is out of range"):
        components(lambda w: jnp.sum(w**2), jnp.ones(2), -1.0)


# --- second order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2.0, INF])
def test_second_order_is_exact_on_a_quadratic(p):
    random = np.random.default_rng(6)
    root, w, rho = random.normal(size=(5, 5)), random.normal(size=5), 0.7
    h = root + root.T
    g = h @ w
    found = second_order(lambda w: w @ (jnp.asarray(h) @ w) / 2, jnp.asarray(w), rho, p)
    epsilon = rho * (g / np.linalg.norm(g) if p == 2 else np.sign(g))
    exact, half = parts_by_hand(g, g + h @ epsilon)["g_v"], h @ epsilon / 2
    np.testing.assert_allclose(found.g_v_norm, np.linalg.norm(exact), rtol=1e-10)
    np.testing.assert_allclose(found.projected.norm, np.linalg.norm(exact), rtol=1e-10)
    np.testing.assert_allclose(found.projected.relative_error, 0, atol=1e-12)
    np.testing.assert_allclose(found.projected.cosine, 1, rtol=1e-12)
    np.testing.assert_allclose(found.printed.norm, np.linalg.norm(half), rtol=1e-10)
    np.testing.assert_allclose(found.printed.error, np.linalg.norm(half - exact), rtol=1e-10)
    relative = np.linalg.norm(half - exact) / np.linalg.norm(exact)
    np.testing.assert_allclose(found.printed.relative_error, relative, rtol=1e-10)
    cosine = half @ exact / np.linalg.norm(half) / np.linalg.norm(exact)
    np.testing.assert_allclose(found.printed.cosine, cosine, rtol=1e-9)


def test_the_error_falls_with_the_radius_only_if_projected():
    problem = make_problem()
    error = jax.jit(lambda rho: second_order(problem.loss, problem.params, rho))
    large, small = error(jnp.asarray(1e-3)), error(jnp.asarray(1e-4))
    np.testing.assert_allclose(large.projected.relative_error / small.projected.relative_error, 10, rtol=1e-2)
    np.testing.assert_allclose(large.printed.relative_error / small.printed.relative_error, 1, rtol=1e-2)


def test_second_order_in_a_round_bowl():
    found = second_order(lambda w: 3 * jnp.sum(w**2), jnp.array([1.0, 2.0]), 0.5)
    assert float(found.g_v_norm) == 0
    assert [float(x) for x in found.projected] == [0, 0, 0, 0]
    np.testing.assert_allclose(found.printed.norm, 6 * 0.5 / 2, rtol=1e-12)  # ½ ρ H ĝ, where g_v is 0
    assert float(found.printed.relative_error) == INF
