"""Curvature against the full Hessian and NumPy's eigenvalues."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from looksam.analysis import (
    hessian_vector_product,
    lanczos_start,
    lanczos_step,
    quadratic_form,
    rademacher,
    ritz_values,
    top_eigenvalues,
    trace,
)

KEY = jax.random.key(0)
SPECTRUM = [5.0, 5.0, 5.0, 2.0, 2.0, 0.0, 0.0, -7.0]


@pytest.fixture(scope="module")
def mlp():
    """A tanh network 4-5-3 with 43 parameters on 9 points: (loss, params, H)."""
    random = np.random.default_rng(1)
    shapes = {"in": {"kernel": (4, 5), "bias": (5,)}, "out": {"kernel": (5, 3), "bias": (3,)}}
    params = jax.tree.map(lambda s: jnp.asarray(random.normal(size=s)), shapes, is_leaf=lambda s: isinstance(s, tuple))
    x, y = jnp.asarray(random.normal(size=(9, 4))), jnp.asarray(random.integers(0, 3, 9))

    def loss(params):
        hidden = jnp.tanh(x @ params["in"]["kernel"] + params["in"]["bias"])
        logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

    flat, unflatten = ravel_pytree(params)
    return loss, params, np.asarray(jax.jit(jax.hessian(lambda w: loss(unflatten(w))))(flat))


def rotated(spectrum, seed=2):
    """A quadratic with these eigenvalues, on a tree with a scalar and an empty leaf."""
    random = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(random.normal(size=(len(spectrum), len(spectrum))))
    h = jnp.asarray(axes @ np.diag(spectrum) @ axes.T)
    params = {"one": jnp.zeros(()), "none": jnp.zeros((0, 2)), "rest": jnp.zeros(len(spectrum) - 1)}

    def loss(params):
        w = ravel_pytree(params)[0]
        return w @ (h @ w) / 2

    return loss, params, np.asarray(h)


def test_products(mlp):
    loss, params, h = mlp
    v = np.random.default_rng(5).normal(size=len(h))
    product = hessian_vector_product(loss, params, ravel_pytree(params)[1](jnp.asarray(v)))
    np.testing.assert_allclose(ravel_pytree(product)[0], h @ v, rtol=1e-9, atol=1e-12)


def test_all_eigenvalues_of_a_network(mlp):
    loss, params, h = mlp
    found = jax.jit(lambda w: top_eigenvalues(loss, w, 43, 99, KEY))(params)
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(h)[::-1], rtol=1e-9, atol=1e-12)
    assert np.all(np.asarray(found.residuals) < 1e-9)


def test_residuals_say_how_far_off_few_steps_are(mlp):
    loss, params, h = mlp
    exact = np.linalg.eigvalsh(h)[::-1]
    found = jax.jit(lambda w: top_eigenvalues(loss, w, 4, 6, KEY))(params)
    values, residuals = map(np.asarray, found)
    nearest = np.min(np.abs(values[:, None] - exact), axis=1)
    assert np.all(nearest <= residuals * (1 + 1e-9))
    assert np.all(values <= exact[:4] + 1e-12)  # from within
    assert np.max(residuals) > 1e-3  # or this test would see nothing


def test_residuals_are_those_of_the_ritz_vectors():
    # a 3-step basis of a diagonal matrix, by hand: Krylov vectors, QR, Rayleigh-Ritz
    h = np.diag([9.0, 4.0, 1.0, 0.5, -2.0])
    loss = lambda w: jnp.sum(jnp.diag(jnp.asarray(h)) * w**2) / 2
    found = top_eigenvalues(loss, jnp.zeros(5), 3, 3, KEY)
    start = np.asarray(jax.random.normal(jax.random.fold_in(KEY, 0), (5,)))
    basis, _ = np.linalg.qr(np.stack([start, h @ start, h @ h @ start], axis=1))
    values, small = np.linalg.eigh(basis.T @ h @ basis)
    ritz = basis @ small
    np.testing.assert_allclose(found.values, values[::-1], rtol=1e-10)
    np.testing.assert_allclose(found.residuals, np.linalg.norm(h @ ritz - ritz * values, axis=0)[::-1], rtol=1e-8)


@pytest.mark.parametrize("spectrum", [SPECTRUM, [3.0] * 5, [0.0] * 4, [-1.0, -2.0, -2.0], [1e9, 1.0, 1.0, 1e-3]])
def test_repeated_eigenvalues_are_all_found(spectrum):
    loss, params, _ = rotated(spectrum)
    found = top_eigenvalues(loss, params, len(spectrum), 50, KEY)
    scale = max(map(abs, spectrum))
    np.testing.assert_allclose(found.values, sorted(spectrum, reverse=True), atol=1e-13 * max(scale, 1))


def test_a_loop_on_the_host_gives_the_same(mlp):
    loss, params, _ = mlp
    step = jax.jit(lambda w, state: lanczos_step(loss, w, state))
    state = lanczos_start(params, 6, KEY)
    for _ in range(6):
        state = step(params, state)
    expected = jax.jit(lambda w: top_eigenvalues(loss, w, 4, 6, KEY))(params)
    for a, b in zip(ritz_values(state, 4), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    basis = np.asarray(state.basis)
    np.testing.assert_allclose(basis @ basis.T, np.eye(6), atol=1e-14)


def test_many_points_at_once(mlp):
    loss, params, h = mlp
    two = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    found = jax.jit(jax.vmap(lambda w: top_eigenvalues(loss, w, 1, 43, KEY).values))(two)
    np.testing.assert_allclose(found, np.full((2, 1), np.linalg.eigvalsh(h)[-1]), rtol=1e-10)


def test_narrow_parameters_have_a_wide_basis():
    loss = lambda w: jnp.sum(jnp.arange(1, 31, dtype=jnp.float32) * w**2) / 2
    found = jax.jit(lambda w: top_eigenvalues(loss, w, 30, 30, KEY))(jnp.zeros(30, jnp.float32))
    assert found.values.dtype == jnp.float64
    np.testing.assert_allclose(found.values, np.arange(30, 0, -1), rtol=1e-6)


@pytest.mark.usefixtures("as_users_run_it")
def test_in_float32():
    loss = lambda w: jnp.sum(jnp.arange(1, 31) * w["a"] ** 2) / 2
    found = jax.jit(lambda w: top_eigenvalues(loss, w, 30, 30, KEY))({"a": jnp.zeros(30)})
    assert found.values.dtype == jnp.float32
    rounding = 8 * 30 * np.finfo(np.float32).eps  # of the largest eigenvalue
    np.testing.assert_allclose(found.values, np.arange(30, 0, -1), rtol=0, atol=rounding)


def test_trace_of_a_diagonal_hessian_is_exact():
    h = {"a": jnp.array([1.0, -2.0, 30.0]), "b": jnp.array(0.25)}
    loss = lambda w: jnp.sum(h["a"] * w["a"] ** 2) / 2 + h["b"] * w["b"] ** 2 / 2
    found = trace(loss, jax.tree.map(jnp.zeros_like, h), 7, KEY)
    np.testing.assert_allclose(found.value, 29.25, rtol=1e-14)
    np.testing.assert_allclose(found.error, 0, atol=1e-13)


def test_probes_are_unbiased():
    loss, params, h = rotated(SPECTRUM)
    unflatten = ravel_pytree(params)[1]
    cube = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=len(h))))
    every = jax.jit(jax.vmap(lambda z: quadratic_form(loss, params, unflatten(z))))(cube)
    np.testing.assert_allclose(jnp.mean(every), sum(SPECTRUM), rtol=1e-12)
    np.testing.assert_allclose(every, np.einsum("ni,ij,nj->n", cube, h, cube), atol=1e-11)


def test_trace_is_the_mean_over_its_probes():
    loss, params, h = rotated(SPECTRUM)
    probes = [np.asarray(ravel_pytree(rademacher(key, params))[0]) for key in jax.random.split(KEY, 6)]
    assert {float(x) for z in probes for x in z} == {-1.0, 1.0}
    samples = [z @ h @ z for z in probes]
    assert np.std(samples) > 1
    found = trace(loss, params, 6, KEY)
    np.testing.assert_allclose(found.value, np.mean(samples), rtol=1e-11)
    np.testing.assert_allclose(found.error, np.std(samples, ddof=1) / np.sqrt(6), rtol=1e-11)


def test_one_probe_has_no_error():
    found = trace(lambda w: jnp.sum(w**2), jnp.ones(3), 1, KEY)
    assert float(found.value) == 6
    assert np.isnan(found.error)


@pytest.mark.parametrize(
    ("count", "steps", "error", "message"),
    [
        (4, 9, ValueError, "count=4 exceeds the 3 eigenvalues that 3 parameters have; pass at most 3"),
        (3, 2, ValueError, "steps=2 finds at most 2 eigenvalues, not count=3; pass steps >= 3"),
        (0, 2, ValueError, "count=0 is out of range"),
        (1, True, TypeError, "steps=True is not an int"),
    ],
)
def test_bad_counts(count, steps, error, message):
    with pytest.raises(error, match=message):
        top_eigenvalues(lambda w: jnp.sum(w**2), jnp.ones(3), count, steps, KEY)


def test_no_probes():
    with pytest.raises(ValueError, match="probes=0 is out of range; pass probes >= 1"):
        trace(lambda w: jnp.sum(w**2), jnp.ones(3), 0, KEY)
