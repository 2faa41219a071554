"""Bad arguments raise before anything is traced, with the value, the place and the fix."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import RULES, build

import looksam
from looksam.rules import (
    compose,
    every,
    global_perturbation,
    gsam_gradient,
    momentum_perturbation,
    reused_g_v,
)

GLOBAL, MOMENTUM = global_perturbation(), momentum_perturbation()

PARAMS = {"layer": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}}


def untouched(*args):
    pytest.fail("traced before the check")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: looksam.sam(-0.1), ValueError, r"rho=-0.1 .*rho >= 0"),
        (lambda: looksam.sam(float("nan")), ValueError, r"rho=nan"),
        (lambda: looksam.sam(jnp.array(float("inf"))), ValueError, r"rho=inf"),
        (lambda: looksam.sam("0.1"), TypeError, r"rho='0.1' is not a number"),
        (lambda: looksam.sam(True), TypeError, r"rho=True"),
        (lambda: looksam.sam(jnp.ones(3)), ValueError, r"rho has shape \(3,\).*vmap"),
        (lambda: looksam.look_sam(0.1, -1.0), ValueError, r"alpha=-1.0 .*alpha >= 0"),
        (lambda: looksam.look_layer_sam(0.1, np.nan), ValueError, r"alpha=nan"),
        (lambda: looksam.sam_k(0.1, 0), ValueError, r"k=0 .*k >= 1"),
        (lambda: looksam.look_sam(0.1, k=2.0), TypeError, r"k=2.0 is not an int"),
        (lambda: looksam.look_sam(0.1, k=True), TypeError, r"k=True"),
        (lambda: looksam.sam(0.1, p=1.0), ValueError, r"p=1.0 .*1 < p"),
        (lambda: looksam.layer_sam(0.1, p=float("nan")), ValueError, r"p=nan"),
        (lambda: looksam.sam(0.1, p="2"), TypeError, r"p='2'"),
        (lambda: looksam.layer_sam(0.1, scaling="paper"), ValueError, r"scaling='paper'.*'literal'"),
        (lambda: looksam.layer_sam(0.1, layers="kernel"), TypeError, r"layers='kernel' is not callable"),
        (lambda: looksam.look_sam(0.1, store_dtype=jnp.int8), TypeError, r"store_dtype=int8"),
        (lambda: looksam.sam(0.1, start=-1), ValueError, r"start=-1 .*start >= 0"),
        (lambda: looksam.sam(0.1, start=0.8), TypeError, r"start=0.8 is not an int"),
        (lambda: looksam.look_sam(0.1, start=5, stop=5), ValueError, r"stop=5 is not after start=5"),
        (lambda: looksam.msam(0.1, stop="9"), TypeError, r"stop='9' is not an int"),
        (lambda: looksam.sam(0.1, perturb="kernel"), TypeError, r"perturb='kernel' is not callable.*'block/kernel'"),
        (lambda: looksam.asam(0.1, eta=-1.0), ValueError, r"eta=-1.0"),
        (lambda: looksam.asam(0.1, scale=True), TypeError, r"scale=True is not callable"),
        (lambda: looksam.gsam(0.1, alpha=-0.5), ValueError, r"alpha=-0.5"),
        (lambda: looksam.msam(0.1, momentum=1.0), ValueError, r"momentum=1.0 .*momentum < 1"),
        (lambda: looksam.msam(0.1, momentum="0.9"), TypeError, r"momentum='0.9'"),
        (lambda: looksam.msam(0.1, store_dtype=jnp.int8), TypeError, r"store_dtype=int8"),
        (lambda: compose(0.5, 0.1), TypeError, r"perturbation is a float; pass e.g. global_perturbation"),
        (lambda: compose(GLOBAL, 0.1, schedule=5), TypeError, r"schedule is a int; pass .*every\(5\)"),
        (lambda: compose(GLOBAL, 0.1, refresh=0.4), TypeError, r"refresh is a float; .*sam_gradient"),
        (lambda: compose(GLOBAL, 0.1, between=reused_g_v), TypeError, r"between is a function; .*plain_gradient"),
        (lambda: compose(MOMENTUM, 0.1, schedule=every(5)), ValueError, r"every\(5\) needs the clean gradient"),
        (lambda: compose(MOMENTUM, 0.1, refresh=gsam_gradient(0.1)), ValueError, r"gsam_gradient.* clean gradient"),
        (lambda: compose(MOMENTUM, 0.1, between=reused_g_v()), ValueError, r"reused_g_v.* clean gradient"),
        (lambda: compose(MOMENTUM, 0.1, groups=2), ValueError, r"groups=2 needs the clean gradient"),
        (lambda: looksam.sam(0.1).refreshes(-1), ValueError, r"step=-1"),
        (lambda: looksam.sam(0.1).refreshes(1.5), TypeError, r"float"),
    ],
)
def test_factories(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_alpha_of_one_and_rho_of_zero_are_fine():
    looksam.look_sam(0.0, 1.0)
    looksam.look_sam(np.float32(0.1), jnp.array(1))


@pytest.mark.parametrize("name", RULES)
def test_perturb_that_chooses_nothing(name):
    rule = build(name, perturb=lambda path: path == "kernel")
    with pytest.raises(ValueError, match="perturb is False for every parameter.*'layer/bias', 'layer/kernel'"):
        rule.init(PARAMS)


@pytest.mark.parametrize("name", RULES)
def test_leaves_that_are_not_floats(name):
    rule = build(name)
    for bad in (jnp.arange(3), jnp.ones(2, complex)):
        params = {"layer": {"kernel": jnp.ones(2), "step": bad}}
        with pytest.raises(TypeError, match=f"'layer/step' has dtype {bad.dtype}.*cast"):
            rule.init(params)
        with pytest.raises(TypeError, match="'layer/step'"):
            rule.gradient(untouched, params, rule.init(PARAMS))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"layer": {"kernel": jnp.ones((2, 3))}}, r"'layer/bias', and params does not.*init"),
        ({"layer": {**PARAMS["layer"], "scale": jnp.ones(1)}}, r"'layer/scale' is not in the g_v.*init"),
        (
            {"layer": {**PARAMS["layer"], "kernel": jnp.ones((2, 2))}},
            r"'layer/kernel' has shape \(2, 2\), and \(2, 3\)",
        ),
    ],
)
def test_params_that_differ_from_the_kept_g_v(params, message):
    rule = looksam.look_sam(0.1)
    with pytest.raises(ValueError, match=message):
        rule.gradient(untouched, params, rule.init(PARAMS))


class Pair(NamedTuple):
    left: jax.Array
    right: jax.Array


@pytest.mark.parametrize(
    ("params", "kept", "message"),
    [
        ([jnp.ones(2)], (jnp.ones(2),), "params has a list, and the g_v in state a tuple; call rule.init"),
        (
            {"a": jnp.ones(2), "b": [{"c": (jnp.ones(2), jnp.ones(1))}]},
            {"a": jnp.ones(2), "b": [{"c": [jnp.ones(2), jnp.ones(1)]}]},
            "params has a tuple at 'b/0/c', and the g_v in state a list",
        ),
        (
            {"a": {"left": jnp.ones(2), "right": jnp.ones(2)}},
            {"a": Pair(jnp.ones(2), jnp.ones(2))},
            "params has a dict at 'a', and the g_v in state a Pair",
        ),
    ],
)
def test_the_first_containers_that_differ_are_named(params, kept, message):
    rule = looksam.look_sam(0.1)
    with pytest.raises(ValueError, match=message):
        rule.gradient(untouched, params, rule.init(kept))


def test_a_leaf_that_is_not_an_array_is_named():
    rule = looksam.sam(0.1)
    for leaf, problem in ((jax.nn.relu, "is a .*, relu, and not an array"), ("relu", "is a str, 'relu'")):
        with pytest.raises(TypeError, match=f"parameter 'layer/activation' {problem}.*keep it out of params"):
            rule.init({"layer": {"kernel": jnp.ones(2), "activation": leaf}})


def test_an_equinox_model_is_to_be_partitioned():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, width_size=4, depth=1, key=jax.random.key(0))
    rule = looksam.sam(0.1)
    with pytest.raises(TypeError, match=r"'activation' is a .*eqx.partition\(model, eqx.is_inexact_array\)"):
        rule.init(model)
    rule.init(eqx.filter(model, eqx.is_inexact_array))


def test_state_of_another_rule():
    with pytest.raises(TypeError, match="a SAMState, and this rule carries a LookSAMState"):
        looksam.look_sam(0.1).gradient(untouched, PARAMS, looksam.sam(0.1).init(PARAMS))


@pytest.mark.parametrize("name", RULES)
def test_a_traced_or_odd_refresh(name):
    rule = build(name)

    @jax.jit
    def step(refresh):
        return rule.gradient(untouched, PARAMS, rule.init(PARAMS), refresh=refresh)

    for bad in (jnp.array(True), 1, "yes"):
        with pytest.raises(TypeError, match="refresh=.*Python bool"):
            rule.gradient(untouched, PARAMS, rule.init(PARAMS), refresh=bad)
    with pytest.raises(TypeError, match="refresh=.*Python bool"):
        step(True)


def test_a_traced_host_step():
    with pytest.raises(TypeError, match="step is traced"):
        jax.jit(looksam.sam(0.1).refreshes)(3)


@pytest.mark.parametrize("function", [lambda w: jnp.sum(w["layer"]["bias"]), jax.grad(lambda w: w["layer"]["bias"][0])])
def test_something_else_than_value_and_grad(function):
    rule = looksam.sam(0.1)
    with pytest.raises(TypeError, match=r"jax.value_and_grad\(loss\)"):
        rule.gradient(function, PARAMS, rule.init(PARAMS))


def test_a_gradient_of_other_arguments():
    rule = looksam.sam(0.1)
    wrong = jax.value_and_grad(lambda w, x: jnp.sum(w["layer"]["bias"] * x), argnums=1)
    with pytest.raises(ValueError, match="'layer/bias' is not in the gradient"):
        rule.gradient(wrong, PARAMS, rule.init(PARAMS), jnp.ones(3))


def test_as_optimizer_without_what_it_needs():
    tx = looksam.as_optimizer(looksam.sam(0.1), optax.sgd(0.1))
    state = tx.init(PARAMS)
    with pytest.raises(ValueError, match="grad_fn"):
        tx.update(PARAMS, state, PARAMS)
    with pytest.raises(ValueError, match="params is None"):
        tx.update(PARAMS, state, grad_fn=untouched)
    with pytest.raises(TypeError, match="Python bool"):
        jax.jit(functools.partial(tx.update, grad_fn=untouched))(PARAMS, state, PARAMS, refresh=True)
