"""fp16 with a gradient scaler: unscaled once per pass, overflow handled on either pass."""

import numpy as np
import pytest
import torch
from torch_problems import (
    LOOK_RULES,
    PERIOD,
    RULES,
    TWO_GRADIENT_RULES,
    build,
    saved_rule,
    sgd,
    step_without_closure,
    torch_problem,
)

every_rule = pytest.mark.parametrize("name", RULES)


def scaler(**options):
    return torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, "growth_interval": 10**6, **options})


def closure_for(ours, opt, scaler, spoil=(), calls=None):
    """Returns a closure with a scaled loss; the passes whose number is in ``spoil`` overflow."""
    calls = [] if calls is None else calls

    def closure():
        opt.zero_grad()
        loss = ours.loss()
        scaler.scale(loss).backward()
        if len(calls) in spoil:
            list(ours.params.values())[1].grad[0, 0] = torch.inf
        calls.append(1)
        return loss

    return closure


@every_rule
@pytest.mark.parametrize("enabled", [True, False])
def test_scaled_steps_equal_plain_ones(name, enabled):
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build(name, sgd(problem.params.values())) for problem in (ours, plain))
    scale = scaler(enabled=enabled)
    for _ in range(2 * PERIOD):
        opt.step(closure_for(ours, opt, scale), scaler=scale)
        scale.update()
        other.step(plain.closure(other))
        np.testing.assert_array_equal(ours.flat(), plain.flat())  # a power of two: exact
    assert scale.get_scale() == (1024.0 if enabled else 1.0)


@every_rule
def test_the_form_without_a_closure(name):
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build(name, sgd(problem.params.values())) for problem in (ours, plain))
    scale = scaler()
    for _ in range(PERIOD + 1):
        step_without_closure(lambda: scale.scale(ours.loss()).backward(), opt, scaler=scale)
        scale.update()
        other.step(plain.closure(other))
        np.testing.assert_array_equal(ours.flat(), plain.flat())


@every_rule
@pytest.mark.parametrize("at", [0, PERIOD, PERIOD + 1])
def test_overflow_of_the_clean_gradient_skips_the_step(name, at):
    """Nothing changes: not the weights, the count, g_v or v, nor the base optimizer's momentum."""
    ours, plain = torch_problem(), torch_problem()
    make = lambda problem: build(name, torch.optim.SGD(problem.params.values(), lr=0.05, momentum=0.9))
    opt, other, scale, calls = make(ours), make(plain), scaler(), []
    for i in range(2 * PERIOD):
        if i == at:
            before = ours.flat()
            kept = {k: x.clone() for k, x in saved_rule(opt)["kept"].items()}
            opt.step(closure_for(ours, opt, scale, spoil={0}, calls=calls), scaler=scale)
            np.testing.assert_array_equal(ours.flat(), before)
            assert len(calls) == 1  # no second pass
            saved = saved_rule(opt)
            assert saved["count"] == at and list(saved["kept"]) == list(kept)
            assert all(torch.equal(x, saved["kept"][k]) for k, x in kept.items())
            scale.update()
            assert scale.get_scale() == 512.0
        opt.step(closure_for(ours, opt, scale), scaler=scale)
        scale.update()
        other.step(plain.closure(other))
        np.testing.assert_array_equal(ours.flat(), plain.flat())


@pytest.mark.parametrize("name", TWO_GRADIENT_RULES)
def test_overflow_of_the_second_gradient_falls_back_and_lowers_the_scale(name):
    ours = torch_problem()
    opt, scale = build(name, sgd(ours.params.values())), scaler()
    before = ours.flat()
    opt.step(closure_for(ours, opt, scale, spoil={1}), scaler=scale)
    g = ours.problem.gradient(before)
    np.testing.assert_allclose(ours.gradient(), g, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ours.flat(), before - 0.05 * g, rtol=1e-12)
    assert opt.info.fell_back
    scale.update()
    assert scale.get_scale() == 512.0
    if name in LOOK_RULES:
        assert float(saved_rule(opt)["norm"]) == 0.0
        w = ours.flat()
        opt.step(closure_for(ours, opt, scale), scaler=scale)  # plain g until the next refresh
        np.testing.assert_allclose(ours.gradient(), ours.problem.gradient(w), rtol=1e-12, atol=1e-14)


def test_overflow_without_a_closure():
    ours = torch_problem()
    opt, scale = build("look_sam", sgd(ours.params.values())), scaler()
    before = ours.flat()
    closure_for(ours, opt, scale, spoil={0})()
    opt.ascend(scaler=scale)
    np.testing.assert_array_equal(ours.flat(), before)  # the weights do not move
    closure_for(ours, opt, scale)()
    opt.step(scaler=scale)
    scale.update()
    np.testing.assert_array_equal(ours.flat(), before)
    assert scale.get_scale() == 512.0 and opt.needs_second_pass
    opt.step(closure_for(ours, opt, scale), scaler=scale)
    assert not opt.needs_second_pass


def test_a_norm_that_overflows_is_not_an_overflow_of_the_gradient():
    """1e25 is fine in float32 and its square is not: the step is not skipped, and falls back."""
    w = torch.nn.Parameter(torch.ones(3))
    opt, scale = build("look_sam", sgd([w], lr=1e-25)), scaler(init_scale=1.0)

    def closure():
        opt.zero_grad()
        scale.scale((w * 1e25).sum()).backward()

    opt.step(closure, scaler=scale)
    scale.update()
    assert opt.info.fell_back and scale.get_scale() == 1.0
    torch.testing.assert_close(w.detach(), torch.zeros(3))


def test_fp16_autocast_of_a_network():
    """Half-precision forward passes with a scale that overflows at first, as in real use."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x, y = torch.randn(16, 6), torch.randn(16, 1)
    opt, scale = build("look_sam", sgd(model.parameters())), scaler(init_scale=2.0**24)
    taken = 0
    for _ in range(20):
        before = [p.detach().clone() for p in model.parameters()]

        def closure():
            opt.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = ((model(x) - y) ** 2).mean()
            scale.scale(loss).backward()
            return loss

        opt.step(closure, scaler=scale)
        scale.update()
        taken += any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert scale.get_scale() < 2.0**24  # it did overflow
    assert 0 < taken == opt.count < 20
    assert all(torch.isfinite(p).all() for p in model.parameters())
