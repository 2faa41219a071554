"""Schedules, decay, clipping and rules as a recipe names them, against their formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import looksam
from looksam.methods import METHODS
from looksam.trainer.optimizers import make_optimizer, make_rule, make_schedule
from looksam.trainer.recipe import Recipe

PARAMS = {"kernel": jnp.array([[3.0, 4.0]]), "bias": jnp.array([1.0])}
GRADS = {"kernel": jnp.array([[0.6, 0.0]]), "bias": jnp.array([0.8])}


def first_update(recipe, params=PARAMS, grads=GRADS):
    tx = make_optimizer(recipe, total_steps=100)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = tx.update(grads, tx.init(params), params)
    return updates


@jax.numpy_dtype_promotion("standard")
def test_schedules_at_every_step():
    cosine = make_schedule(Recipe(learning_rate=0.4, warmup_steps=10), 110)
    linear = make_schedule(Recipe(learning_rate=0.4, warmup_steps=10, schedule="linear"), 110)
    for step in range(111):
        warm, left = 0.4 * step / 10, (step - 10) / 100
        expected = warm if step < 10 else 0.2 * (1 + math.cos(math.pi * left))
        np.testing.assert_allclose(cosine(step), expected, atol=1e-7)
        np.testing.assert_allclose(linear(step), warm if step < 10 else 0.4 * (1 - left), atol=1e-7)


def test_the_learning_rate_grows_linearly_with_the_batch():
    recipe = Recipe(learning_rate=0.1, scale_from_batch=256, batch_size=1024)
    assert recipe.peak_learning_rate() == pytest.approx(0.4)
    assert Recipe(learning_rate=0.1, batch_size=1024).peak_learning_rate() == 0.1


def test_warmup_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match="warmup_steps=50 leaves no step of the 50"):
        make_schedule(Recipe(warmup_steps=50), 50)


@pytest.mark.parametrize(("decay_all", "bias"), [(True, 1.0), (False, 0.0)])
def test_decay_reaches_kernels_and_only_on_request_biases(decay_all, bias):
    recipe = Recipe(learning_rate=0.1, weight_decay=0.01, decay_all=decay_all)
    updates = first_update(recipe)
    np.testing.assert_allclose(updates["kernel"], -0.1 * (GRADS["kernel"] + 0.01 * PARAMS["kernel"]), rtol=1e-6)
    np.testing.assert_allclose(updates["bias"], -0.1 * (GRADS["bias"] + 0.01 * bias), rtol=1e-6)


def test_clipping_is_by_the_global_norm_and_before_the_decay():
    updates = first_update(Recipe(learning_rate=1.0, clip_norm=0.5, weight_decay=0.01))  # ‖GRADS‖ is 1
    np.testing.assert_allclose(updates["bias"], -(0.5 * GRADS["bias"] + 0.01 * PARAMS["bias"]), rtol=1e-6)


def test_lamb_steps_by_the_norm_of_each_tensor():
    updates = first_update(Recipe(optimizer="lamb", learning_rate=0.1))
    np.testing.assert_allclose(np.linalg.norm(updates["kernel"]), 0.1 * 5, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "cost"),
    [
        *(("base", 1), ("sam", 2), ("sam_k", 1.25), ("look_sam", 1.25), ("layer_sam", 2), ("look_layer_sam", 1.25)),
        *(("asam", 2), ("gsam", 2), ("msam", 1)),
    ],
)
def test_rules_are_those_the_recipe_names(method, cost):
    recipe = Recipe(method=method, rho=0.2, alpha=0.3, k=4, eta=0.1, momentum=0.8)
    assert METHODS[recipe.method].gradients_per_step(recipe.k) == cost
    rule = make_rule(recipe, 100)
    if method == "base":
        assert rule is None
        return
    options = {"k": 4} if cost == 1.25 else {}
    options |= {"alpha": 0.3} if method.startswith(("look", "gsam")) else {}
    options |= {"asam": {"eta": 0.1}, "msam": {"momentum": 0.8}}.get(method, {})
    twin = getattr(looksam, method)(0.2, **options)
    value_and_grad = jax.value_and_grad(lambda w: jnp.sum(w["kernel"] ** 4) + jnp.sum(w["bias"] ** 2))
    state = rule.init(PARAMS)
    for _ in range(2):
        ours, theirs = (r.gradient(value_and_grad, PARAMS, state) for r in (rule, twin))
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
        state = ours[2]
