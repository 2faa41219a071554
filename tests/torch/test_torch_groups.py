"""The base optimizer's groups in the hands of a rule: frozen, replaced, added and repeated parameters, two wrappers."""

import copy

import numpy as np
import pytest
import torch
from pytorch_optimizer import ScheduleFreeAdamW
from torch_problems import LOOK_RULES, PERIOD, RULES, build, flat, given, sgd, torch_problem

from looksam.torch import GSAM, SAM, LayerSAM, LookSAM

G, G_S = ([torch.tensor(x, dtype=torch.float64) for x in xs] for xs in (([0.3, 0.1], [-0.2]), ([0.5, -0.1], [0.4])))


def parameters(*values):
    return [torch.nn.Parameter(torch.tensor(x, dtype=torch.float64)) for x in values or ([1.0, -2.0], [0.5])]


def adamw(params):
    return torch.optim.AdamW(params, lr=0.05, weight_decay=0.1)


def reused(g, g_v):
    """Returns g + α (‖g‖/‖g_v‖) g_v of each tensor; a g of None counts as 0."""
    norms = [np.linalg.norm(flat([x for x in xs if x is not None])) for xs in (g, g_v)]
    return [None if x is None else x + 0.7 * norms[0] / norms[1] * v for x, v in zip(g, g_v, strict=True)]


def orthogonal_part():
    g, g_s = flat(G), flat(G_S)
    part = g_s - (g @ g_s) / (g @ g) * g
    return [torch.tensor(x) for x in np.split(part, [2])]


@pytest.mark.parametrize("name", RULES)
def test_frozen_parameters_are_left_alone(name):
    w, frozen = (torch.nn.Parameter(torch.ones(3), requires_grad=x) for x in (True, False))
    opt = build(name, sgd([w, frozen]))
    seen = []

    def closure():
        opt.zero_grad()
        seen.append(frozen.detach().clone())
        ((w * frozen) ** 3).sum().backward()

    for _ in range(PERIOD + 1):
        opt.step(closure)
    assert frozen.grad is None and all(torch.equal(x, torch.ones(3)) for x in seen)


@pytest.mark.parametrize("name", LOOK_RULES)
def test_a_parameter_frozen_in_mid_cycle_does_not_move(name):
    """Unfrozen in the same cycle, it has its g_v again."""
    params, g_v = parameters(), orthogonal_part()
    opt = build(name, adamw(params), rho=1e-6)
    opt.step(given(params, opt, G, G_S))
    params[1].requires_grad_(False)
    before = params[1].detach().clone()
    opt.step(given(params, opt, [G[0], None]))
    assert torch.equal(params[1], before) and params[1].grad is None
    np.testing.assert_allclose(params[0].grad, reused([G[0], None], g_v)[0], rtol=1e-12)
    params[1].requires_grad_(True)
    opt.step(given(params, opt, G))
    np.testing.assert_allclose(flat([p.grad for p in params]), flat(reused(G, g_v)), rtol=1e-12)
    assert not torch.equal(params[1], before)


def test_a_parameter_frozen_at_a_refresh_has_no_g_v_when_it_is_unfrozen():
    params = parameters()
    opt = LookSAM(adamw(params), 0.1, k=2)
    opt.step(given(params, opt, G, G_S))
    opt.step(given(params, opt, G))
    params[1].requires_grad_(False)
    opt.step(given(params, opt, [G[0], None], [G_S[0], None]))
    params[1].requires_grad_(True)
    opt.step(given(params, opt, G))
    assert torch.equal(params[1].grad, G[1]) and not torch.equal(params[0].grad, G[0])


def test_a_frozen_parameter_with_a_gradient_of_zero_does_not_move():
    """zero_grad(set_to_none=False) leaves one; SGD does not move by it, and g_v is not added."""
    params = parameters()
    opt = LookSAM(sgd(params), 0.1, k=3)
    loss = lambda: (params[0] ** 4).sum() + (params[1] * params[0]).sum() ** 2
    for i in range(3):
        opt.zero_grad(set_to_none=False)
        loss().backward()
        if opt.needs_second_pass:
            with opt.ascend():
                loss().backward()
        opt.step()
        if i == 0:
            params[1].requires_grad_(False)
            before = params[1].detach().clone()
        assert torch.equal(params[1], before) and not params[1].grad.any() if i else True


@pytest.mark.parametrize("name", LOOK_RULES)
def test_a_step_is_plain_if_nothing_of_g_v_is_left(name):
    params = parameters([1.0, -2.0], [0.5], [3.0])
    opt = build(name, sgd(params))
    opt.step(given(params, opt, [*G, None], [*G_S, None]))
    for p in params[:2]:
        p.requires_grad_(False)
    before = [p.detach().clone() for p in params]
    only = torch.tensor([0.4], dtype=torch.float64)
    opt.step(given(params, opt, [None, None, only]))
    assert torch.equal(params[2].grad, only) and float(opt.info.g_v_norm) == 0
    assert all(torch.equal(p, w) for p, w in zip(params[:2], before[:2], strict=True))


@pytest.mark.parametrize("name", RULES)
def test_tensors_that_require_no_gradient_can_be_trained_by_gradients_set_by_hand(name):
    runs = []
    for make in (parameters, lambda: [p.detach() for p in parameters()]):
        params = make()
        opt, seen = build(name, sgd(params)), []

        def closure(params=params, opt=opt, seen=seen):
            seen.append(flat(params))
            opt.zero_grad()
            for p in params:
                p.grad = p.detach() ** 3 + 1

        for _ in range(PERIOD):
            opt.step(closure)
        runs.append(np.array([*seen, flat(params)]))
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize("name", RULES)
def test_parameters_replaced_in_mid_cycle(name):
    """Steps are plain until the next refresh, which is that of a new optimizer."""
    ours, other = torch_problem(), torch_problem(seed=1)
    opt = build(name, sgd(ours.params.values()))
    opt.step(ours.closure(opt))
    opt.param_groups[0]["params"] = list(other.params.values())
    if name in LOOK_RULES:
        for _ in range(PERIOD - 1):
            w = other.flat()
            opt.step(other.closure(opt))
            np.testing.assert_allclose(other.gradient(), other.problem.gradient(w), rtol=1e-12, atol=1e-12)
    opt.count = 0
    again = copy.deepcopy(other)
    fresh = build(name, sgd(again.params.values()))
    for _ in range(PERIOD):
        opt.step(other.closure(opt))
        fresh.step(again.closure(fresh))
        np.testing.assert_array_equal(other.flat(), again.flat())


def test_some_parameters_replaced_in_mid_cycle():
    """The others keep their g_v."""
    params = parameters()
    opt = LookSAM(sgd(params), 0.1)
    opt.step(given(params, opt, G, G_S))
    params[1] = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt.param_groups[0]["params"] = params
    opt.step(given(params, opt, G))
    norm, g_v = np.linalg.norm(flat(G)), orthogonal_part()
    np.testing.assert_allclose(params[0].grad, G[0] + 0.7 * norm / np.linalg.norm(flat(g_v)) * g_v[0], rtol=1e-12)
    assert torch.equal(params[1].grad, G[1])


@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        ({"params": [torch.ones(2, dtype=torch.complex64)]}, TypeError, "parameter 0 of group 1 is torch.complex64"),
        ({"rho": -0.1}, ValueError, "group 1: rho=-0.1"),
        ({"alpha": "0.1"}, TypeError, "group 1: alpha='0.1'"),
        ({"perturb": 1}, TypeError, "group 1: perturb=1 is not a bool"),
        ({"maximize": True}, ValueError, "group 1 has maximize=True"),
        ({"rho": 0.1, "lr": 0.3, "params": None}, TypeError, "not iterable"),
    ],
)
def test_a_refused_group_is_not_added(group, error, message):
    ours = torch_problem()
    opt = build("look_sam", sgd(ours.params.values()))
    opt.step(ours.closure(opt))
    new = {"params": [torch.nn.Parameter(torch.ones(2))], **group}
    given_group, before = dict(new), copy.copy(opt.param_groups[0])
    with pytest.raises(error, match=message):
        opt.add_param_group(new)
    assert len(opt.param_groups) == 1 and opt.param_groups[0] == before and new == given_group
    opt.step(ours.closure(opt))


def test_a_group_without_names_is_not_added_where_they_are_needed():
    model = torch.nn.Linear(2, 1)
    opt = LayerSAM(sgd(model.parameters()), 0.1, layers=lambda name: name, model=model)
    with pytest.raises(ValueError, match="layers= needs names, and parameter 0 of group 1 has none"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize("name", RULES)
def test_a_parameter_listed_twice_is_refused(name):
    w = torch.nn.Parameter(torch.ones(2))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        base = sgd([w, torch.nn.Parameter(torch.ones(3)), w])
    with pytest.raises(ValueError, match="parameter 2 of group 0 is listed twice.*list it once"):
        build(name, base)
    assert "rho" not in base.param_groups[0]
    opt = build(name, sgd([torch.nn.Parameter(torch.ones(3))]))
    with (
        pytest.warns(UserWarning, match="duplicate parameters"),
        pytest.raises(ValueError, match="parameter 1 of group 1 is listed twice"),
    ):
        opt.add_param_group({"params": [w, w]})
    assert len(opt.param_groups) == 1


def test_the_settings_of_a_second_wrapper_win():
    """But a group that was given its own keeps it."""
    params = parameters()
    groups = lambda params: [{"params": params[:1], "rho": 0.5}, {"params": params[1:]}]
    base = sgd(groups(params))
    LookSAM(base, 0.1, 0.3)
    base.param_groups[1]["rho"] = 0.15  # by a schedule of the first
    opt = LookSAM(base, 0.2, 0.6)
    assert [(group["rho"], group["alpha"]) for group in base.param_groups] == [(0.5, 0.6), (0.2, 0.6)]
    others = parameters()
    other = LookSAM(sgd(groups(others)), 0.2, 0.6)
    for _ in range(2):
        for ps, look in ((params, opt), (others, other)):
            look.step(lambda ps=ps: (ps[0].sum() * ps[1].sum() + (ps[0] ** 4).sum()).backward())
        np.testing.assert_array_equal(flat(params), flat(others))
    base.load_state_dict(sgd(groups(parameters())).state_dict())  # one hook is left, that of the second
    assert [(group["rho"], group["alpha"]) for group in base.param_groups] == [(0.5, 0.6), (0.2, 0.6)]


def test_a_second_wrapper_of_another_kind():
    base = sgd(parameters())
    GSAM(base, 0.1, 0.3)
    SAM(base, lambda count: 0.2)
    assert not {"rho", "alpha"} & set(base.param_groups[0])
    opt = GSAM(base, 0.2, 0.4)
    with pytest.raises(ValueError, match="alpha=-1"):
        GSAM(base, 0.5, -1.0)
    with pytest.raises(ValueError, match="perturb selects none"):
        SAM(base, 0.5, perturb=lambda name: False, model=torch.nn.ParameterList(base.param_groups[0]["params"]))
    assert (opt.param_groups[0]["rho"], opt.param_groups[0]["alpha"]) == (0.2, 0.4)


def test_the_modes_of_a_schedule_free_base():
    ours, plain = torch_problem(), torch_problem()
    opt, base = SAM(ScheduleFreeAdamW(ours.params.values()), 0.0), ScheduleFreeAdamW(plain.params.values())
    for _ in range(3):
        opt.train()
        base.train()
        opt.step(ours.closure(opt))
        base.step(plain.closure(base))
        training = ours.flat()
        opt.eval()
        base.eval()
        np.testing.assert_array_equal(ours.flat(), plain.flat())
    assert np.any(ours.flat() != training)


def test_evaluation_is_refused_at_perturbed_weights_and_modes_are_ignored_by_other_bases():
    params = parameters()
    opt, before = SAM(sgd(params), 0.1), flat(params)
    opt.eval()
    opt.train()
    np.testing.assert_array_equal(flat(params), before)
    (params[0] ** 2).sum().backward()
    with opt.ascend():
        opt.train()
        with pytest.raises(RuntimeError, match=r"opt.eval\(\) while the weights are at w"):
            opt.eval()
        (params[0] ** 2).sum().backward()
