"""Sharpness against closed forms, the secular equation and loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import make_problem

from looksam.analysis import ascent_sharpness, m_sharpness, one_step_sharpness

INF = float("inf")


def quadratic(seed=0, size=6):
    """L(w) = g·w + ½ wᵀHw at w = 0, with a convex H."""
    random = np.random.default_rng(seed)
    root = random.normal(size=(size, size))
    h, g = root @ root.T / size, random.normal(size=size)

    def loss(w):
        return jnp.asarray(g) @ w + w @ (jnp.asarray(h) @ w) / 2

    return loss, g, h


def largest_rise(g, h, rho):
    """The largest g·ε + ½ εᵀHε over ‖ε‖ ≤ ρ: (λ − H) ε = g with ‖ε‖ = ρ and λ above all eigenvalues, by bisection."""
    values, vectors = np.linalg.eigh(h)
    parts = vectors.T @ g
    low, high = values[-1], values[-1] + np.linalg.norm(g) / rho + 1
    for _ in range(200):
        middle = (low + high) / 2
        too_long = np.sum((parts / (middle - values)) ** 2) > rho**2
        low, high = (middle, high) if too_long else (low, middle)
    epsilon = vectors @ (parts / (high - values))
    np.testing.assert_allclose(np.linalg.norm(epsilon), rho, rtol=1e-12)
    return g @ epsilon + epsilon @ h @ epsilon / 2


def ascent(problem, rho, steps, stride, p):
    """The rises of projected ascent, by hand."""
    w = problem.flat(problem.params)
    value = float(problem.loss(problem.params))
    epsilon, rises = np.zeros_like(w), []
    leaves, structure = jax.tree.flatten(problem.params)
    for _ in range(steps):
        g = problem.gradient(w + epsilon)
        epsilon = epsilon + stride * (g / np.linalg.norm(g) if p == 2 else np.sign(g))
        if p == 2:
            epsilon = epsilon * min(1.0, rho / np.linalg.norm(epsilon))
        epsilon = np.clip(epsilon, -rho, rho)
        parts = [
            jnp.asarray((w + epsilon)[place]).reshape(x.shape) for place, x in zip(problem.leaves, leaves, strict=True)
        ]
        rises.append(float(problem.loss(jax.tree.unflatten(structure, parts))) - value)
    return rises


@pytest.mark.parametrize("rho", [0.1, 3.0])
def test_ascent_reaches_the_maximum_of_a_quadratic(rho):
    loss, g, h = quadratic()
    expected = largest_rise(g, h, rho)
    found = jax.jit(lambda w: ascent_sharpness(loss, w, rho, steps=400))(jnp.zeros(6))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("step_size", [0.3, 1.0, 7.0])
def test_ascent_stays_within_the_radius(step_size):
    # the norm rises by the radius at most, and along the weights by just that
    w = {"a": jnp.array([3.0]), "b": jnp.array([0.0, 4.0])}
    loss = lambda w: jnp.sqrt(jnp.sum(w["a"] ** 2) + jnp.sum(w["b"] ** 2))
    np.testing.assert_allclose(ascent_sharpness(loss, w, 1.0, 6, step_size=step_size), 1.0, rtol=1e-12)


@pytest.mark.parametrize("step_size", [None, 0.25, 9.0])
def test_ascent_in_a_cube(step_size):
    h, g, rho = np.array([1.0, 0.5, 4.0]), np.array([1.0, -2.0, 0.5]), 0.7
    loss = lambda w: jnp.sum(jnp.asarray(g) * w) + jnp.sum(jnp.asarray(h) * w**2) / 2
    expected = np.sum(rho * np.abs(g) + h * rho**2 / 2)
    found = ascent_sharpness(loss, jnp.zeros(3), rho, 3, p=INF, step_size=step_size)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("p", [2.0, INF])
def test_ascent_is_the_best_of_its_steps(p):
    problem, rho = make_problem(), 1.5
    rises = ascent(problem, rho, 8, 0.9, p)
    found = [
        float(jax.jit(lambda w, n=n: ascent_sharpness(problem.loss, w, rho, n, p, step_size=0.9))(problem.params))
        for n in (1, 2, 5, 8)
    ]
    np.testing.assert_allclose(found, [max(rises[:n]) for n in (1, 2, 5, 8)], rtol=1e-9)


def test_an_ascent_that_comes_back_keeps_its_best():
    # past the top at 1 and down again: only the first step is high
    loss = lambda w: -jnp.abs(jnp.abs(w[0]) - 1.0)
    rises = [float(ascent_sharpness(loss, jnp.array([0.4]), 2.0, n, step_size=0.9)) for n in (1, 2, 3, 4)]
    np.testing.assert_allclose(rises, [0.3, 0.3, 0.3, 0.3], atol=1e-12)


def test_one_step_of_ascent_is_one_step_sharpness():
    problem = make_problem()
    for p in (2.0, INF):
        one = jax.jit(lambda w, p=p: one_step_sharpness(problem.loss, w, 0.3, p))(problem.params)
        ascent = jax.jit(lambda w, p=p: ascent_sharpness(problem.loss, w, 0.3, 1, p))(problem.params)
        np.testing.assert_allclose(ascent, one, rtol=1e-12)


def test_a_flat_point_and_a_radius_of_zero():
    flat = lambda w: jnp.sum(w * 0)
    assert float(ascent_sharpness(flat, jnp.ones(2), 1.0, 3)) == 0
    assert float(ascent_sharpness(lambda w: jnp.sum(w**2), jnp.ones(2), 0.0, 3)) == 0


def test_ascent_over_many_radii_at_once():
    problem, radii = make_problem(), jnp.array([0.1, 0.5])
    together = jax.jit(jax.vmap(lambda rho: ascent_sharpness(problem.loss, problem.params, rho, 3)))(radii)
    alone = [max(ascent(problem, float(rho), 3, float(rho), 2)) for rho in radii]
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def logistic(w, x, y):
    return jnp.mean(jnp.logaddexp(jnp.zeros_like(y), -y * (x @ w)))


def rises_by_group(w, x, y, rho, m):
    def value(w, x, y):
        return np.mean(np.log1p(np.exp(-y * (x @ w))))

    rises = []
    for start in range(0, len(y), m):
        rows = slice(start, start + m)
        margin = y[rows] * (x[rows] @ w)
        g = -np.mean((y[rows] / (1 + np.exp(margin)))[:, None] * x[rows], axis=0)
        up = w + rho * g / np.linalg.norm(g)
        rises.append(value(up, x[rows], y[rows]) - value(w, x[rows], y[rows]))
    return rises


@pytest.mark.parametrize("m", [1, 4, 12])
def test_m_sharpness_is_the_mean_over_groups(m):
    random = np.random.default_rng(3)
    x, w, y = random.normal(size=(12, 5)), random.normal(size=5), random.choice([-1.0, 1.0], 12)
    found = m_sharpness(logistic, jnp.asarray(w), (jnp.asarray(x), jnp.asarray(y)), 0.4, m)
    np.testing.assert_allclose(found, np.mean(rises_by_group(w, x, y, 0.4, m)), rtol=1e-10)


def test_m_sharpness_of_the_whole_batch_and_of_several_steps():
    random = np.random.default_rng(4)
    w, batch = jnp.asarray(random.normal(size=5)), (jnp.asarray(random.normal(size=(8, 5))), jnp.ones(8))
    rise = jax.jit(lambda w, *batch: ascent_sharpness(lambda w: logistic(w, *batch), w, 0.4, 3))
    grouped = jax.jit(lambda w, batch, m: m_sharpness(logistic, w, batch, 0.4, m, steps=3), static_argnums=2)
    np.testing.assert_allclose(grouped(w, batch, 8), rise(w, *batch), rtol=1e-12)
    halves = [rise(w, *(x[rows] for x in batch)) for rows in (slice(4), slice(4, 8))]
    np.testing.assert_allclose(grouped(w, batch, 4), np.mean(halves), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f, w: ascent_sharpness(f, w, -0.1, 2), ValueError, r"rho=-0.1 is out of range; pass a finite rho >= 0"),
        (lambda f, w: ascent_sharpness(f, w, "much", 2), TypeError, "rho='much' is not a number"),
        (lambda f, w: ascent_sharpness(f, w, jnp.ones(2), 2), ValueError, r"rho has shape \(2,\); pass a scalar"),
        (lambda f, w: ascent_sharpness(f, w, 0.1, 0), ValueError, "steps=0 is out of range; pass steps >= 1"),
        (lambda f, w: ascent_sharpness(f, w, 0.1, 2.5), TypeError, "steps=2.5 is not an int"),
        (lambda f, w: ascent_sharpness(f, w, 0.1, 2, p=3.0), ValueError, "p=3.0 has no projection here; pass p=2.0 or"),
        (lambda f, w: ascent_sharpness(f, w, 0.1, 2, step_size=0.0), ValueError, "step_size=0.0 .* pass step_size > 0"),
        (lambda f, w: m_sharpness(f, w, (jnp.ones(6),), 0.1, 4), ValueError, "m=4 does not divide the 6 examples"),
        (lambda f, w: m_sharpness(f, w, (jnp.ones(6), jnp.ones(4)), 0.1, 2), ValueError, "one row per example"),
        (lambda f, w: m_sharpness(f, w, (1.0,), 0.1, 2), ValueError, "one row per example"),
    ],
)
def test_bad_arguments(call, error, message):
    def never(w, *batch):
        raise AssertionError("traced")

    with pytest.raises(error, match=message):
        call(never, jnp.ones(2))
