"""The four choices of a rule: worked examples, windows, what is perturbed, and settings that change between steps."""

import numpy as np
import pytest
import torch
from torch_problems import PERIOD, RULES, TWO_GRADIENT_RULES, build, given, saved_rule, sgd, torch_problem

from looksam.torch import (
    ASAM,
    GSAM,
    SAM,
    LookLayerSAM,
    LookSAM,
    SharpnessAware,
    every,
    global_perturbation,
    gsam_gradient,
    layerwise_perturbation,
    reused_g_v,
)
from looksam.torch.parts import Perturbation

every_rule = pytest.mark.parametrize("name", RULES)
two_gradient_rule = pytest.mark.parametrize("name", TWO_GRADIENT_RULES)


def steps(ours, opt, number):
    seen = []
    for _ in range(number):
        opt.step(ours.closure(opt))
        seen.append(np.concatenate([ours.gradient(), ours.flat()]))
    return np.array(seen)


def points(ours, opt):
    """Returns the weights at which a step takes its gradients."""
    seen = []

    def closure():
        seen.append(ours.flat())
        return ours.closure(opt)()

    opt.step(closure)
    return seen


def test_a_named_rule_is_its_composition():
    ours, other = torch_problem(), torch_problem()
    named = LookLayerSAM(sgd(ours.params.values()), 0.2, 0.5, k=2, scaling="adaptive", start=1)
    composed = SharpnessAware(
        sgd(other.params.values()),
        layerwise_perturbation(scaling="adaptive"),
        0.2,
        schedule=every(2, start=1),
        between=reused_g_v(0.5),
    )
    np.testing.assert_array_equal(steps(ours, named, 5), steps(other, composed, 5))


def test_asam_by_hand():
    """With η = 0, ε = ρ w² g/‖w g‖; a weight of 0 does not move."""
    ours = torch_problem()
    w, g = ours.flat(), ours.problem.gradient(ours.flat())
    clean, perturbed = points(ours, ASAM(sgd(ours.params.values(), lr=0.0), 0.4, eta=0.0))
    np.testing.assert_array_equal(clean, w)
    np.testing.assert_allclose(perturbed - w, 0.4 * w**2 * g / np.linalg.norm(w * g), rtol=1e-10, atol=1e-14)
    assert np.any(w == 0)


def test_gsam_by_hand():
    """With g = (3, 4) and g_s = (0, 2), g_⊥ is (3, 0)."""
    w = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    opt = GSAM(sgd([w], lr=0.0), 0.1, 0.5)
    opt.step(given([w], opt, [torch.tensor([3.0, 4.0]).double()], [torch.tensor([0.0, 2.0]).double()]))
    np.testing.assert_allclose(w.grad, [-1.5, 2.0], rtol=1e-14)
    info = [float(x) for x in opt.info]
    np.testing.assert_allclose(info, [5.0, 2.5, 1.2, 3.5 / 12.5, 1.0, 0.0], rtol=1e-13)


@pytest.mark.parametrize("full_info", [False, True])
def test_gsam_without_its_part_is_sam(full_info):
    ours, other = torch_problem(), torch_problem()
    gsam = GSAM(sgd(ours.params.values()), 0.2, 0.0, full_info=full_info)
    sam = SAM(sgd(other.params.values()), 0.2, full_info=full_info)
    np.testing.assert_array_equal(steps(ours, gsam, 4), steps(other, sam, 4))
    assert [None if x is None else float(x) for x in gsam.info] == [None if x is None else float(x) for x in sam.info]


@pytest.mark.parametrize("full_info", [False, True])
@pytest.mark.parametrize("reuses", [False, True])
def test_gsams_alpha_of_a_group(reuses, full_info):
    """It is called gsam_alpha where LookSAM's α is in the groups as well."""
    ours = torch_problem()
    problem, params, key = ours.problem, list(ours.params.values()), "gsam_alpha" if reuses else "alpha"
    base = torch.optim.SGD([{"params": params[:2], key: 0.9}, {"params": params[2:]}], lr=0.05)
    between = {"between": reused_g_v(0.3), "schedule": every(2)} if reuses else {}
    opt = SharpnessAware(base, global_perturbation(), 0.1, refresh=gsam_gradient(0.2), full_info=full_info, **between)
    assert opt.param_groups[1][key] == 0.2 and (not reuses or opt.param_groups[0]["alpha"] == 0.3)
    alpha = np.where(np.arange(len(problem.seen)) < problem.leaves[2].start, 0.9, 0.2)
    w = ours.flat()
    opt.step(ours.closure(opt))
    g = problem.gradient(w)
    g_s = problem.gradient(w + 0.1 * g / np.linalg.norm(g))
    returned = g_s - alpha * (g - (g @ g_s) / (g_s @ g_s) * g_s)
    np.testing.assert_allclose(ours.gradient(), returned, rtol=1e-10, atol=1e-12)
    g_v = g_s - (g @ g_s) / (g @ g) * g
    np.testing.assert_allclose(float(opt.info.g_v_norm), np.linalg.norm(g_v), rtol=1e-10)
    if full_info:
        norm = np.linalg.norm(returned)
        cosine = g @ returned / np.linalg.norm(g) / norm
        np.testing.assert_allclose([float(opt.info.returned_norm), float(opt.info.cosine)], [norm, cosine], rtol=1e-10)
    else:
        assert opt.info.returned_norm is None and opt.info.cosine is None


@every_rule
def test_one_gradient_outside_the_window_and_nothing_kept(name):
    """Outside, the steps are those of the base optimizer; the first step inside refreshes."""
    ours, plain, calls, seen = torch_problem(), torch_problem(), [], []
    opt, base = build(name, sgd(ours.params.values()), start=2, stop=5), sgd(plain.params.values())
    for i in range(8):
        opt.step(ours.closure(opt, calls))
        seen.append(len(calls))
        calls.clear()
        if i < 2:
            base.step(plain.closure(base))
            np.testing.assert_array_equal(ours.flat(), plain.flat())
        if not 2 <= i < 5:
            assert saved_rule(opt)["kept"] == {} and not opt.info.refreshed
    second = [2 if name in TWO_GRADIENT_RULES and ("k" not in RULES[name][1] or i == 0) else 1 for i in range(3)]
    assert seen == [1, 1, *second, 1, 1, 1]
    assert "start=2, stop=5" in repr(opt)


@two_gradient_rule
def test_what_is_not_perturbed_stays_at_w(name):
    """A group's switch is the same as a predicate, and other than a group whose ρ is 0, which counts in the norm."""
    moved = {}
    for kind in ("predicate", "switch", "rho"):
        ours = torch_problem()
        own = {"switch": {"perturb": False}, "rho": {"rho": 0.0}}.get(kind, {})
        halves = [[item for item in ours.params.items() if item[0].startswith("nested") == x] for x in (True, False)]
        base = torch.optim.SGD([{"params": halves[0], **own}, {"params": halves[1]}], lr=0.0)
        predicate = {"perturb": lambda name: not name.startswith("nested")} if kind == "predicate" else {}
        before = ours.flat()
        moved[kind] = points(ours, build(name, base, **predicate))[1] - before
        np.testing.assert_array_equal(ours.flat(), before)
    inner = np.arange(len(before))[ours.problem.leaves[2].start : ours.problem.leaves[3].stop]
    assert all(np.all(x[inner] == 0) and np.any(x != 0) for x in moved.values())
    np.testing.assert_array_equal(moved["predicate"], moved["switch"])
    ratio = np.linalg.norm(moved["rho"]) / np.linalg.norm(moved["switch"])
    assert 0 < ratio < 0.999


def test_g_v_is_over_all_parameters():
    ours = torch_problem()
    opt = LookSAM(sgd(list(ours.params.items())), 0.1, perturb=lambda name: name == "matrix")
    opt.step(ours.closure(opt))
    kept = saved_rule(opt)["kept"]
    assert len(kept) == len(ours.params) and any(bool(x.any()) for i, x in kept.items() if i != 1)


def test_perturbed_parameters_without_a_gradient():
    """Nothing moves, and the step is that of the base optimizer."""
    w, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    for name in TWO_GRADIENT_RULES:
        opt = build(name, sgd([("w", w), ("unused", unused)]), perturb=lambda name: name == "unused")
        opt.step(lambda opt=opt: (opt.zero_grad(), (w**2).sum().backward()))
        assert opt.info.refreshed and unused.grad is None


def test_a_model_names_parameters_under_its_wrappers():
    model = torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.ones(2)), "b": torch.nn.Parameter(torch.ones(2))})
    seen = []
    opt = SAM(
        sgd(model.parameters()),
        0.1,
        model=torch.compile(model, backend="eager"),
        perturb=lambda x: (seen.append(x), x == "a")[1],
    )
    assert sorted(seen) == ["a", "b"]

    def closure():
        opt.zero_grad()
        seen.append(model["b"].tolist())
        (model["a"] * model["b"]).sum().backward()

    opt.step(closure)
    assert seen[-2:] == [[1.0, 1.0]] * 2 and len(seen) == 4  # the names are asked for once


@two_gradient_rule
def test_a_radius_of_zero_takes_no_second_gradient(name):
    """By a schedule, in all groups, or because all groups are switched off; g_v is dropped."""
    ours, calls = torch_problem(), []
    opt = build(name, sgd(ours.params.values()), rho=lambda count: 0.1 if count < PERIOD else 0.0)
    for i in range(2 * PERIOD):
        if i == PERIOD:
            calls.clear()
            assert not opt.needs_second_pass
        w = ours.flat()
        opt.step(ours.closure(opt, calls))
    np.testing.assert_allclose(ours.gradient(), ours.problem.gradient(w), rtol=1e-12, atol=1e-13)
    assert len(calls) == PERIOD and not opt.info.refreshed and saved_rule(opt)["kept"] == {}
    switched = build(name, sgd(ours.params.values()))
    assert switched.needs_second_pass
    for key, value in (("rho", 0.0), ("perturb", False)):
        group = switched.param_groups[0]
        before, group[key] = group.get(key, True), value
        assert not switched.needs_second_pass
        group[key] = before
    ours.closure(opt)()
    opt.step()  # without a closure too


def test_a_schedule_is_not_asked_about_steps_that_do_not_come():
    ours, radii = torch_problem(), [0.1, 0.2]
    opt = SAM(sgd(ours.params.values()), radii.__getitem__)
    for _ in radii:
        ours.closure(opt)()
        with opt.ascend():
            ours.loss().backward()
        opt.step()
    assert opt.count == 2


def test_the_period_and_the_count_can_be_set():
    ours = torch_problem()
    opt = LookSAM(sgd(ours.params.values()), 0.1, k=2)
    opt.step(ours.closure(opt))
    assert (opt.k, opt.count, opt.needs_second_pass) == (2, 1, False)
    opt.k = 3
    opt.step(ours.closure(opt))
    assert opt.count == 2 and not opt.needs_second_pass and saved_rule(opt)["kept"]
    opt.count = 6
    assert opt.needs_second_pass
    opt.k = 1  # which is SAM: nothing is kept
    assert saved_rule(opt) == {"keeps": "nothing", "count": 6, "kept": {}, "norm": None}
    opt.step(ours.closure(opt))
    opt.k = 4
    w = ours.flat()
    opt.step(ours.closure(opt))  # a reuse before any refresh
    np.testing.assert_allclose(ours.gradient(), ours.problem.gradient(w), rtol=1e-12, atol=1e-13)
    opt.count = 8
    ours.closure(opt)()
    opt.ascend()
    for name in ("k", "count"):
        with pytest.raises(RuntimeError, match=f"setting opt.{name} while the weights are at w"):
            setattr(opt, name, 2)
    opt.restore()


def test_a_perturbation_of_your_own():
    """It gets what its function says of each parameter's name; here, parameters go against or along the gradient."""

    def unit(g, w, signs, space):
        norm = space.norm(g)
        return g, torch.stack([sign / norm for sign in signs])

    ours = torch_problem()
    perturbation = Perturbation(unit, "signs", lambda name: -1.0 if name == "matrix" else 1.0)
    opt = SharpnessAware(sgd(list(ours.params.items()), lr=0.0), perturbation, 0.3)
    w, g = ours.flat(), ours.problem.gradient(ours.flat())
    g = 0.3 * g / np.linalg.norm(g)
    g[ours.problem.leaves[1]] *= -1
    np.testing.assert_allclose(points(ours, opt)[1], w + g, rtol=1e-12)
    with pytest.raises(ValueError, match="signs= needs names, and parameter 0 of group 0 has none"):
        SharpnessAware(sgd(ours.params.values()), perturbation, 0.3)
