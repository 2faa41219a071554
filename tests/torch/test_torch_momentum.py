"""MSAM: one gradient per step, at w + ε; its momentum, the base optimizer's, bad values, failures and the calls."""

import copy

import numpy as np
import pytest
import torch
from torch_problems import build, flat, given, saved_rule, sgd, torch_problem

from looksam.torch import MSAM, tensors
from looksam.torch.phase import Phase

G = [torch.tensor([0.3, 0.1], dtype=torch.float64), torch.tensor([-0.2], dtype=torch.float64)]


def sgdm(params, momentum=0.9, **options):
    return torch.optim.SGD(params, lr=0.05, momentum=momentum, **options)


def parameters(dtype=torch.float64):
    return [torch.nn.Parameter(torch.tensor(x, dtype=dtype)) for x in ([1.0, -2.0], [0.5])]


def momentum(opt):
    return flat(saved_rule(opt)["kept"].values())


@pytest.fixture(params=["host", "device"])
def where_conditions_are_decided(request, monkeypatch):
    """Decides conditions by Python, as on a CPU, and by tensors, as on an accelerator."""
    if request.param == "device":
        monkeypatch.setattr(tensors, "on_host", lambda x: False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_move_against_the_momentum_and_come_back_to_the_bit(dtype):
    ours = torch_problem(dtype=dtype)
    opt = MSAM(sgd(ours.params.values(), lr=0.0), rho=0.25)
    before, seen = ours.flat(), []

    def closure():
        seen.append(ours.flat())
        return ours.closure(opt)()

    for _ in range(3):
        opt.step(closure)
        np.testing.assert_array_equal(ours.flat(), before)
    np.testing.assert_array_equal(seen[0], before)  # v is 0
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 0.03}[dtype]
    np.testing.assert_allclose([np.linalg.norm(x - before) for x in seen[1:]], 0.25, rtol=tolerance)
    v = momentum(opt)  # the gradient at w, and then two at w + ε; this problem's are nearly the same
    cosine = (before - seen[2]) @ v / np.linalg.norm(before - seen[2]) / np.linalg.norm(v)
    assert cosine > 0.9


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_momentum_of_sgd_is_the_same_v(nesterov):
    """The buffer is v to the bit, with a parameter that some batches do not use, and nothing else is kept."""
    runs = []
    for use_base_momentum in (False, True):
        params = parameters()
        opt = MSAM(sgdm(params, nesterov=nesterov), rho=0.3, use_base_momentum=use_base_momentum)
        steps = []
        for i in range(5):

            def closure(params=params, opt=opt, i=i):
                opt.zero_grad()
                loss = (params[0] ** 4).sum() + (0 if i == 2 else (params[1] ** 2 * params[0]).sum())
                loss.backward()
                return loss

            loss = opt.step(closure)
            steps.append([float(loss.detach()), *flat(params)])
        runs.append(np.array(steps))
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-13)
    assert saved_rule(opt)["kept"] == {}


def test_resuming_with_the_momentum_of_sgd():
    ours, again = torch_problem(), torch_problem()
    make = lambda problem: MSAM(sgdm(problem.params.values()), rho=0.2, use_base_momentum=True)
    opt, resumed = make(ours), make(again)
    for _ in range(2):
        opt.step(ours.closure(opt))
    with torch.no_grad():
        for p, q in zip(again.params.values(), ours.params.values(), strict=True):
            p.copy_(q)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))  # SGD's buffers would be shared
    for _ in range(2):
        opt.step(ours.closure(opt))
        resumed.step(again.closure(resumed))
        np.testing.assert_array_equal(ours.flat(), again.flat())


@pytest.mark.parametrize(
    ("base", "options", "error", "message"),
    [
        (lambda p: torch.optim.AdamW(p), {}, TypeError, r"buffer of torch.optim.SGD, and base is AdamW"),
        (sgd, {}, ValueError, r"momentum=0.9 in the base optimizer, and group 0 has momentum=0"),
        (sgdm, {"momentum": 0.8}, ValueError, r"momentum=0.8 in the base optimizer, and group 0 has momentum=0.9"),
        (sgd, {"momentum": 0.0}, ValueError, r"momentum > 0: without momentum, SGD has no buffer"),
        (lambda p: sgdm(p, weight_decay=0.1), {}, ValueError, r"needs weight_decay=0 .*group 0 has weight_decay=0.1"),
        (lambda p: sgdm(p, dampening=0.5), {}, ValueError, r"needs dampening=0 .*group 0 has dampening=0.5"),
        (sgdm, {"start": 3}, ValueError, r"use_base_momentum=True with start=3"),
    ],
)
def test_bases_whose_momentum_is_another_one(base, options, error, message):
    with pytest.raises(error, match=message):
        MSAM(base(parameters()), 0.1, use_base_momentum=True, **options)


def test_a_base_momentum_that_changes_later():
    params = parameters()
    opt = MSAM(sgdm(params), 0.1, use_base_momentum=True)
    opt.param_groups[0]["momentum"] = 0.5
    with pytest.raises(ValueError, match=r"momentum=0.9 in the base optimizer, and group 0 has momentum=0.5"):
        opt.step(given(params, opt, G))


@pytest.mark.usefixtures("where_conditions_are_decided")
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])  # 1e200: its square overflows
def test_a_bad_gradient_is_passed_on_and_does_not_enter_the_momentum(value):
    params = parameters()
    opt = MSAM(sgd(params, lr=0.0), 0.1)
    opt.step(given(params, opt, G))
    before, bad = momentum(opt), [G[0], torch.full_like(G[1], value)]
    np.testing.assert_array_equal(before, flat(G))
    opt.step(given(params, opt, bad))
    np.testing.assert_array_equal(flat([p.grad for p in params]), flat(bad))
    np.testing.assert_array_equal(momentum(opt), before)
    assert not opt.info.fell_back and opt.info.refreshed
    with torch.no_grad():
        for p in params:  # lr · inf is a NaN
            p.fill_(1.0)
    opt.step(given(params, opt, G))
    np.testing.assert_allclose(momentum(opt), 1.9 * flat(G), rtol=1e-14)


@pytest.mark.usefixtures("where_conditions_are_decided")
def test_zero_gradients_and_a_momentum_too_large_for_its_dtype():
    params, zero, seen = parameters(), [torch.zeros_like(g) for g in G], []
    opt = MSAM(sgd(params, lr=0.0), 0.1, store_dtype=torch.float16)
    for g in (zero, zero, [1e6 * x for x in G], G, G):
        inner = given(params, opt, g)
        opt.step(lambda inner=inner: (seen.append(flat(params)), inner()))
        assert np.all(np.isfinite(momentum(opt))) and np.all(np.isfinite([float(x) for x in opt.info]))
    start = flat(parameters())
    np.testing.assert_array_equal(seen[:4], [start] * 4)  # a v that overflowed starts anew
    np.testing.assert_allclose(seen[4], start - 0.1 * flat(G) / np.linalg.norm(flat(G)), rtol=1e-3)


def test_a_pass_that_fails_leaves_weights_and_momentum_as_they_were():
    ours, other = torch_problem(), torch_problem()
    opt, plain = (build("msam", sgdm(problem.params.values())) for problem in (ours, other))
    for _ in range(2):
        opt.step(ours.closure(opt))
        plain.step(other.closure(plain))
    before = ours.flat()

    def failing():
        assert np.any(ours.flat() != before)
        raise KeyboardInterrupt

    for attempt in (lambda: opt.step(failing), lambda: exit_by_error(opt, failing)):
        with pytest.raises(KeyboardInterrupt):
            attempt()
        np.testing.assert_array_equal(ours.flat(), before)
        assert opt._passes.step.phase is Phase.IDLE
    for _ in range(2):
        opt.step(ours.closure(opt))
        plain.step(other.closure(plain))
        np.testing.assert_array_equal(ours.flat(), other.flat())


def exit_by_error(opt, failing):
    with opt.ascend():
        failing()


def test_calls_in_and_out_of_order():
    """One loop fits: ``ascend`` does nothing outside the window, and inside of it no step goes without."""
    ours, reference = torch_problem(), torch_problem()
    opt, other = (MSAM(sgdm(problem.params.values()), 0.2, start=1, stop=4) for problem in (ours, reference))
    for i in range(6):
        opt.zero_grad()
        assert not opt.needs_second_pass
        if i in (1, 2, 3):
            ours.loss().backward()
            with pytest.raises(RuntimeError, match=r"takes its gradient at w \+ ε; .*`with opt.ascend\(\):` around"):
                opt.step()
            opt.zero_grad()
        if i % 2:
            with opt.ascend():
                ours.loss().backward()
        else:
            opt.ascend()
            ours.loss().backward()
        opt.step()
        other.step(reference.closure(other))
        assert opt.info.refreshed == other.info.refreshed == (i in (1, 2, 3))
        np.testing.assert_array_equal(ours.flat(), reference.flat())
    assert saved_rule(opt)["kept"] == {}  # freed after the window
    opt.count = 1
    opt.ascend()
    for wrong in (opt.ascend, lambda: opt.step(ours.closure(opt))):
        with pytest.raises(RuntimeError, match=r"after opt.ascend\(\)|called already"):
            wrong()
    with pytest.raises(RuntimeError, match="while the weights are at w"):
        opt.state_dict()
    opt.restore()
    opt.step(ours.closure(opt))


def test_a_parameter_that_is_frozen_later_is_left_alone():
    params = parameters()
    opt = MSAM(sgdm(params, weight_decay=0.1), 0.1)
    for i in range(4):
        if i == 2:
            params[1].requires_grad_(False)
            before = params[1].detach().clone()
        opt.step(lambda: (opt.zero_grad(), (params[0] ** 2 * params[1]).sum().backward()))
    assert torch.equal(params[1], before) and list(saved_rule(opt)["kept"]) == [0]


def test_parameters_that_are_switched_off_have_no_part_in_the_norm():
    params, seen = parameters(), []
    opt = MSAM(torch.optim.SGD([{"params": [p]} for p in params], lr=0.0), 0.1)
    for i in range(4):
        opt.param_groups[1]["perturb"] = i < 2
        inner = given(params, opt, G)
        opt.step(lambda inner=inner: (seen.append([p.detach().clone() for p in params]), inner()))
    w, g = parameters(), flat(G)
    np.testing.assert_allclose(flat(seen[1]), flat(w) - 0.1 * g / np.linalg.norm(g), rtol=1e-12)
    for later in seen[2:]:
        np.testing.assert_allclose(flat(later[:1]), flat(w[:1]) - 0.1 * g[:2] / np.linalg.norm(g[:2]), rtol=1e-12)
        np.testing.assert_array_equal(flat(later[1:]), flat(w[1:]))
