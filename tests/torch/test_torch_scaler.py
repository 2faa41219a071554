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

from looksam.torch import MSAM
from looksam.torch.phase import Phase

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


# Steps that the scaler takes itself.


def two_phases(ours, opt, scale, take):
    """Takes a step without a closure, where ``take`` is the last call of it."""
    opt.zero_grad()
    if opt.needs_second_pass:
        scale.scale(ours.loss()).backward()
        with opt.ascend(scaler=scale):
            scale.scale(ours.loss()).backward()
    elif isinstance(opt, MSAM):
        with opt.ascend(scaler=scale):
            scale.scale(ours.loss()).backward()
    else:
        scale.scale(ours.loss()).backward()
    take()
    scale.update()


@every_rule
@pytest.mark.parametrize("unscaled", [False, True])
def test_scaler_step_without_a_closure(name, unscaled):
    """The scaler hands over its scale, unless the loop has unscaled the gradients of a step with one pass."""
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build(name, sgd(problem.params.values())) for problem in (ours, plain))
    scale = scaler()

    def take():
        if unscaled and opt._passes.step.phase is Phase.IDLE:
            scale.unscale_(opt)
        scale.step(opt)

    for _ in range(2 * PERIOD):
        two_phases(ours, opt, scale, take)
        other.step(plain.closure(other))
        np.testing.assert_array_equal(ours.flat(), plain.flat())
    assert opt.count == 2 * PERIOD and not {"grad_scale", "found_inf"} & set(opt.__dict__)


@pytest.mark.parametrize("name", LOOK_RULES)
@pytest.mark.parametrize("at", [0, 1])
def test_scaler_step_skips_a_step_that_overflows(name, at):
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build(name, sgd(problem.params.values())) for problem in (ours, plain))
    scale = scaler()
    for i in range(PERIOD):
        if i == at:
            before = ours.flat()
            closure_for(ours, opt, scale, spoil={0})()
            if opt.needs_second_pass:
                opt.ascend(scaler=scale)
            scale.step(opt)
            scale.update()
            np.testing.assert_array_equal(ours.flat(), before)
            assert opt.count == at and scale.get_scale() == 512.0
        two_phases(ours, opt, scale, lambda: scale.step(opt))
        other.step(plain.closure(other))
        np.testing.assert_array_equal(ours.flat(), plain.flat())


@every_rule
def test_scaler_step_with_a_closure_raises(name):
    ours = torch_problem()
    opt, scale, calls = build(name, sgd(ours.params.values())), scaler(), []
    before = ours.flat()
    for scaled_before in (False, True):
        opt.zero_grad()
        if scaled_before:
            scale.scale(ours.loss()).backward()
        scale.scale(torch.ones(()))
        with pytest.raises(RuntimeError, match=r"call opt.step\(closure, scaler=scaler\) on the optimizer itself"):
            scale.step(opt, closure_for(ours, opt, scale, calls=calls))
    np.testing.assert_array_equal(ours.flat(), before)
    assert calls == []
    opt.zero_grad()
    opt.step(closure_for(ours, opt, scale), scaler=scale)  # and the error leaves nothing behind
    scale.update()
    assert opt.count == 1


@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize("with_block", [False, True])
def test_a_second_pass_that_does_not_know_the_scaler_raises(unscaled, with_block):
    ours = torch_problem()
    opt, scale = build("look_sam", sgd(ours.params.values())), scaler()
    before = ours.flat()
    for take in (lambda: scale.step(opt), lambda: opt.step(scaler=scale)):
        opt.zero_grad()
        scale.scale(ours.loss()).backward()
        if unscaled:
            scale.unscale_(opt)
        ascent = opt.ascend()
        if with_block:
            with ascent:
                scale.scale(ours.loss()).backward()
        else:
            opt.zero_grad()
            scale.scale(ours.loss()).backward()
        with pytest.raises(RuntimeError, match="got different scalers; pass scaler= to both"):
            take()
        opt.restore()
        scale.update(512.0)
    np.testing.assert_array_equal(ours.flat(), before)


@pytest.mark.parametrize("steps", [0, 1])
def test_gradients_that_would_be_unscaled_twice_raise(steps):
    ours = torch_problem()
    opt, scale = build("look_sam", sgd(ours.params.values())), scaler()
    for _ in range(steps):
        opt.step(closure_for(ours, opt, scale), scaler=scale)
        scale.update()
    before = ours.flat()
    opt.zero_grad()
    scale.scale(ours.loss()).backward()
    scale.unscale_(opt)
    with pytest.raises(RuntimeError, match=r"leave scaler.unscale_ out, clip by clip_norm="):
        opt.ascend(scaler=scale) if opt.needs_second_pass else opt.step(scaler=scale)
    np.testing.assert_array_equal(ours.flat(), before)


@every_rule
@pytest.mark.parametrize("form", ["closure", "two-phase"])
@pytest.mark.parametrize("updated", [False, True])
def test_the_step_after_a_pass_that_failed(name, form, updated):
    """The scaler refuses to unscale twice, and does not know that the first time was for nothing."""
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build(name, sgd(problem.params.values())) for problem in (ours, plain))
    scale, calls = scaler(), []

    def failing():
        closure_for(ours, opt, scale, calls=calls)()
        if len(calls) == 2 or not opt.needs_second_pass:
            raise ValueError("failed")

    def in_two_phases():
        failing()
        with opt.ascend(scaler=scale):
            failing()

    before = ours.flat()
    for _ in range(2):
        calls.clear()
        with pytest.raises(ValueError, match="failed"):
            opt.step(failing, scaler=scale) if form == "closure" else in_two_phases()
        np.testing.assert_array_equal(ours.flat(), before)
        if updated and opt.needs_second_pass:
            scale.update()
    opt.zero_grad()
    for _ in range(PERIOD + 1):
        opt.step(closure_for(ours, opt, scale), scaler=scale)
        scale.update()
        other.step(plain.closure(other))
        np.testing.assert_array_equal(ours.flat(), plain.flat())
    assert scale.get_scale() == 1024.0


@every_rule
def test_clipping_comes_after_unscaling(name):
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build(name, sgd(problem.params.values()), clip_norm=0.5) for problem in (ours, plain))
    scale = scaler()
    for i in range(2 * PERIOD):
        if i % 2:
            opt.step(closure_for(ours, opt, scale), scaler=scale)
            scale.update()
        else:
            two_phases(ours, opt, scale, lambda: scale.step(opt))
        other.step(plain.closure(other))
        np.testing.assert_allclose(ours.flat(), plain.flat(), rtol=1e-13)
