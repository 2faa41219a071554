"""Every PyTorch rule against the float64 oracle and against the JAX rule, from the same start on the same data."""

import functools

import jax
import numpy as np
import optax
import problems
import pytest
import torch
from oracle import REFERENCES, RuleOracle
from torch_problems import LAYER_RULES, OPTIMIZERS, P_RULES, RULES, build, sgd, step_without_closure, torch_problem

from looksam.arguments import SCALINGS
from looksam.torch import (
    SharpnessAware,
    elementwise_perturbation,
    every,
    global_perturbation,
    gsam_gradient,
    layerwise_perturbation,
    reused_g_v,
)

VARIANTS = [
    (name, p, scaling)
    for name in RULES
    for p in ((2.0, 3.0, np.inf) if name in P_RULES else (None,))
    for scaling in (SCALINGS if name in LAYER_RULES else (None,))
]


def close(ours, reference, tolerance=1e-10):
    np.testing.assert_allclose(ours, reference, rtol=tolerance, atol=tolerance)


def oracle_for(name, problem, p=None, scaling=None, layers=None, **options):
    scaling = scaling or ("normalized" if name in LAYER_RULES else None)
    options |= {"p": p or 2.0, "scaling": scaling, "layers": layers or list(problem.leaves)}
    return REFERENCES[name](**(RULES[name][1] | options))


def run_both(ours, opt, oracle, reference, steps, form="closure"):
    w = ours.flat()
    for _ in range(steps):
        step, points = two_phase if form == "two-phase" else by_closure, []
        loss = step(ours, opt)
        expected, expected_info = oracle.step(
            lambda x, points=points: (points.append(x), ours.problem.gradient(x))[1], w
        )
        close(loss, ours.loss_at(points[0]))
        w = reference.step(w, expected, ours.problem.leaves)
        close(ours.gradient(), expected)
        close(ours.flat(), w)
        close([float(x) for x in opt.info[:5]], expected_info)
        assert not opt.info.fell_back


def by_closure(ours, opt):
    return opt.step(ours.closure(opt)).item()


def two_phase(ours, opt):
    def backward():
        loss = ours.loss()
        loss.backward()
        return loss.item()

    return step_without_closure(backward, opt)


def pair(optimizer, ours):
    make, reference = OPTIMIZERS[optimizer]
    return make(ours.params.values()), reference(0.05)


@pytest.mark.parametrize(("name", "p", "scaling"), VARIANTS)
def test_rule_with_sgdm(name, p, scaling):
    ours = torch_problem()
    base, reference = pair("sgdm", ours)
    options = {"full_info": True} | ({"p": p} if p else {}) | ({"scaling": scaling} if scaling else {})
    run_both(ours, build(name, base, **options), oracle_for(name, ours.problem, p, scaling), reference, steps=10)


@pytest.mark.parametrize("form", ["closure", "two-phase"])
@pytest.mark.parametrize("name", RULES)
def test_rule_with_adamw(name, form):
    ours = torch_problem(seed=1)
    base, reference = pair("adamw", ours)
    opt = build(name, base, full_info=True)
    run_both(ours, opt, oracle_for(name, ours.problem), reference, steps=10, form=form)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("named_by", ["base", "model"])
def test_layers_that_span_several_tensors(scaling, named_by):
    ours = torch_problem(seed=2)
    indices = np.arange(len(ours.problem.seen))
    parts = dict(zip(ours.params, (indices[part] for part in ours.problem.leaves), strict=True))
    nested, rest = ([part for name, part in parts.items() if name.startswith("nested") == x] for x in (True, False))
    layers = [np.concatenate(nested), np.concatenate(rest)]
    model = torch.nn.ParameterDict({name.replace(".", "_"): p for name, p in ours.params.items()})
    if named_by == "base":
        options, base = {}, sgd(list(ours.params.items()))
    else:
        options, base = {"model": model}, sgd(ours.params.values())
    opt = build("look_layer_sam", base, scaling=scaling, full_info=True, layers=lambda n: "nested" in n, **options)
    oracle = oracle_for("look_layer_sam", ours.problem, scaling=scaling, layers=layers)
    run_both(ours, opt, oracle, PlainSGD(), steps=7)


def mask(ours, selected):
    """Returns which entries of the flat vector belong to a parameter for whose name ``selected`` is True."""
    entries = np.zeros(len(ours.problem.seen), bool)
    for name, part in zip(ours.params, ours.problem.leaves, strict=True):
        entries[part] = selected(name)
    return entries


def is_outer(name):
    return not name.startswith("nested")


@pytest.mark.parametrize("form", ["closure", "two-phase"])
@pytest.mark.parametrize("name", RULES)
def test_window_and_perturbed_parameters(name, form):
    ours = torch_problem(seed=6)
    window = {"start": 2, "stop": 7}
    opt = build(name, sgd(list(ours.params.items())), perturb=is_outer, full_info=True, **window)
    oracle = oracle_for(name, ours.problem, perturbed=mask(ours, is_outer), **window)
    run_both(ours, opt, oracle, PlainSGD(), steps=9, form=form)


@pytest.mark.parametrize("p", [2.0, 3.0, np.inf])
def test_parameters_that_asam_does_not_scale(p):
    ours = torch_problem(seed=7)
    opt = build("asam", sgd(list(ours.params.items())), p=p, eta=0.2, scale=is_outer, full_info=True)
    oracle = oracle_for("asam", ours.problem, p=p, eta=0.2, scaled=mask(ours, is_outer))
    run_both(ours, opt, oracle, PlainSGD(), steps=4)


@pytest.mark.parametrize(
    ("perturbation", "reference"),
    [
        (global_perturbation(3.0), {"p": 3.0}),
        (layerwise_perturbation(scaling="adaptive"), {"scaling": "adaptive"}),
        (elementwise_perturbation(eta=0.1), {"eta": 0.1}),
    ],
    ids=["global", "layer-wise", "element-wise"],
)
@pytest.mark.parametrize("perturbed", [None, is_outer])
def test_compositions(perturbation, reference, perturbed):
    """GSAM's refresh on every third step of a window, g_v reused in between, with each perturbation."""
    ours = torch_problem(seed=8)
    opt = SharpnessAware(
        sgd(list(ours.params.items())),
        perturbation,
        0.1,
        schedule=every(3, start=1, stop=8),
        refresh=gsam_gradient(0.4),
        between=reused_g_v(0.6),
        perturb=perturbed,
        full_info=True,
    )
    oracle = RuleOracle(
        0.1,
        k=3,
        alpha=0.6,
        gsam_alpha=0.4,
        start=1,
        stop=8,
        layers=list(ours.problem.leaves),
        perturbed=perturbed and mask(ours, perturbed),
        **reference,
    )
    run_both(ours, opt, oracle, PlainSGD(), steps=10)


class PlainSGD:
    def step(self, w, g, leaves):
        return w - 0.05 * g


@pytest.mark.parametrize("name", [name for name in RULES if name in problems.RULES])
def test_equals_the_jax_rule(name):
    ours = torch_problem(seed=4)
    problem, rule, tx = ours.problem, problems.RULES[name][0](), optax.sgd(0.05, momentum=0.9)
    opt = build(name, pair("sgdm", ours)[0], full_info=True)

    @functools.partial(jax.jit, static_argnums=3)
    def step(params, state, opt_state, refresh):
        _, grads, state, info = rule.gradient(jax.value_and_grad(problem.loss), params, state, refresh=refresh)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), state, opt_state, grads, info

    params, state, opt_state = problem.params, rule.init(problem.params), tx.init(problem.params)
    for i in range(8):
        params, state, opt_state, grads, info = step(params, state, opt_state, rule.refreshes(i))
        by_closure(ours, opt)
        close(ours.gradient(), problem.flat(grads))
        close(ours.flat(), problem.flat(params))
        close([float(x) for x in opt.info], [float(x) for x in info])


@pytest.mark.parametrize("scaling", [None, *SCALINGS])
@pytest.mark.parametrize("p", [2.0, 3.0, np.inf])
def test_rho_and_alpha_of_a_group(p, scaling):
    """ε is one unit vector over all groups, times each group's ρ; g_v is added with each group's α."""
    ours = torch_problem(seed=5)
    problem, half = ours.problem, len(ours.params) // 2
    params = list(ours.params.values())
    groups = [{"params": params[:half], "rho": 0.3, "alpha": 0.2}, {"params": params[half:]}]
    base = torch.optim.SGD(groups, lr=0.05)
    name = "look_layer_sam" if scaling else "look_sam"
    opt = build(name, base, p=p, **({"scaling": scaling} if scaling else {}))
    cut = problem.leaves[half].start
    rho, alpha = (np.where(np.arange(len(problem.seen)) < cut, *both) for both in ((0.3, 0.1), (0.2, 0.7)))

    w = ours.flat()
    by_closure(ours, opt)
    g = problem.gradient(w)
    unit = oracle_for(name, problem, p, scaling, rho=1.0)
    g_s = problem.gradient(w + rho * unit.epsilon(g, w))
    close(ours.gradient(), g_s)
    g_v = g_s - (g @ g_s) / (g @ g) * g
    w = w - 0.05 * g_s
    by_closure(ours, opt)
    g = problem.gradient(w)
    close(ours.gradient(), g + alpha * np.linalg.norm(g) / np.linalg.norm(g_v) * g_v)
