"""Landscapes against direct evaluation, and the norms of filters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import make_problem

from looksam.analysis import filter_normalized, landscape_line, landscape_plane, random_direction, unit_direction

PROBLEM = make_problem()
KEY = jax.random.key(3)


def direction(seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape)), PROBLEM.params)


def moved(params, *moves):
    return jax.tree.map(
        lambda w, *d: w + sum(t * x for (t, _), x in zip(moves, d, strict=True)), params, *(d for _, d in moves)
    )


def test_line():
    d, at = direction(0), [-1.0, -0.3, 0.0, 2.0]
    found = jax.jit(lambda w: landscape_line(PROBLEM.loss, w, d, at))(PROBLEM.params)
    np.testing.assert_allclose(found, [PROBLEM.loss(moved(PROBLEM.params, (t, d))) for t in at], rtol=1e-12)


def test_plane_has_a_row_for_each_y():
    d, e, x, y = direction(0), direction(1), [-1.0, 0.0, 0.5], [0.0, 0.7]
    found = landscape_plane(PROBLEM.loss, PROBLEM.params, d, e, x, y)
    expected = [[PROBLEM.loss(moved(PROBLEM.params, (s, d), (t, e))) for s in x] for t in y]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_filters_have_the_norms_of_the_weights():
    random = np.random.default_rng(2)
    shapes = {"dense": (4, 3), "conv": (2, 2, 3, 5), "bias": (3,), "scale": ()}
    params, raw = ({name: jnp.asarray(random.normal(size=s)) for name, s in shapes.items()} for _ in range(2))
    params["dense"] = params["dense"].at[:, 1].set(0.0)  # a filter that is 0 stays where it is
    raw["conv"] = raw["conv"].at[..., 4].set(0.0)
    found = filter_normalized(raw, params)
    for out in range(3):
        expected = raw["dense"][:, out] * (
            np.linalg.norm(params["dense"][:, out]) / np.linalg.norm(raw["dense"][:, out])
        )
        np.testing.assert_allclose(found["dense"][:, out], expected, rtol=1e-12, atol=0)
    for out in range(4):
        w, d = (np.asarray(tree["conv"])[..., out] for tree in (params, raw))
        np.testing.assert_allclose(found["conv"][..., out], d * (np.linalg.norm(w) / np.linalg.norm(d)), rtol=1e-12)
    assert not found["dense"][:, 1].any()
    assert not found["conv"][..., 4].any()
    assert not found["bias"].any()
    assert not found["scale"].any()


def test_a_random_direction_is_filter_normalised():
    params = {"kernel": jnp.asarray(np.random.default_rng(4).normal(size=(6, 2, 4))), "bias": jnp.ones(4)}
    found = random_direction(KEY, params)
    norms = [np.linalg.norm(np.asarray(tree["kernel"]), axis=(0, 1)) for tree in (found, params)]
    np.testing.assert_allclose(*norms, rtol=1e-12)
    assert not found["bias"].any()
    other = random_direction(jax.random.key(4), params)
    cosine = jnp.sum(found["kernel"] * other["kernel"]) / jnp.sum(params["kernel"] ** 2)
    assert abs(float(cosine)) < 0.9


def test_a_random_direction_keeps_the_dtype():
    params = {"kernel": jnp.ones((3, 2), jnp.float32), "narrow": jnp.ones((3, 2), jnp.bfloat16)}
    assert {name: x.dtype for name, x in random_direction(KEY, params).items()} == {
        "kernel": jnp.float32,
        "narrow": jnp.bfloat16,
    }


def test_unit_direction():
    found = unit_direction({"a": jnp.array([3.0]), "b": jnp.array([[0.0, 4.0]])})
    np.testing.assert_allclose(found["a"], [0.6], rtol=1e-14)
    np.testing.assert_allclose(found["b"], [[0.0, 0.8]], rtol=1e-14)
    assert unit_direction(jnp.zeros(2)).tolist() == [0.0, 0.0]


def test_distances_that_are_no_sequence():
    with pytest.raises(ValueError, match=r"at has shape \(\); pass a sequence of distances"):
        landscape_line(PROBLEM.loss, PROBLEM.params, direction(0), 1.0)
