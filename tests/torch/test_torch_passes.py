"""The two passes: failures in them, the form without a closure, autocast, accumulation, clipping, compilation."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_problems import (
    ONE_GRADIENT_RULES,
    PERIOD,
    RULES,
    TWO_GRADIENT_RULES,
    X,
    Y,
    build,
    closure_for,
    flat,
    given,
    network,
    saved_rule,
    sgd,
    step_without_closure,
    torch_problem,
)
from torch_watch import NoSync

from looksam.torch import LookSAM, optimizer, tensors
from looksam.torch.phase import Phase

every_rule = pytest.mark.parametrize("name", RULES)


def gradients(model):
    return flat([p.grad for p in model.parameters()])


@pytest.mark.parametrize("name", TWO_GRADIENT_RULES)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_second_pass_that_fails_leaves_everything_as_it_was(name, error):
    ours = torch_problem()
    opt = build(name, sgd(ours.params.values()))
    for _ in range(PERIOD):
        opt.step(ours.closure(opt))
    before, count, calls = ours.flat(), opt.count, []

    def failing():
        calls.append(1)
        if len(calls) == 2:
            assert np.any(ours.flat() != before)
            raise error("in the second pass")
        return ours.closure(opt)()

    state = torch.get_rng_state()
    with pytest.raises(error, match="in the second pass"):
        opt.step(failing)
    np.testing.assert_array_equal(ours.flat(), before)
    assert torch.equal(torch.get_rng_state(), state)
    saved = saved_rule(opt)
    assert saved["count"] == count and saved["kept"] == {} and saved["norm"] is None

    other = torch_problem()  # a run that never failed
    with torch.no_grad():
        for p, w in zip(other.params.values(), ours.params.values(), strict=True):
            p.copy_(w)
    fresh = build(name, sgd(other.params.values()))
    for _ in range(PERIOD):  # the step is taken again, as a refresh
        opt.step(ours.closure(opt))
        fresh.step(other.closure(fresh))
        np.testing.assert_array_equal(ours.flat(), other.flat())


@pytest.mark.parametrize("moment", ["while the weights move", "before the second pass"])
def test_an_interrupt_between_the_passes(moment, monkeypatch):
    ours = torch_problem()
    opt = build("look_sam", sgd(ours.params.values()))
    before = ours.flat()
    plain = tensors.add_scaled_

    def interrupted(*arguments):
        if moment == "while the weights move":
            plain(*arguments)
            assert np.any(ours.flat() != before)
        raise KeyboardInterrupt

    where = (tensors, "add_scaled_") if moment == "while the weights move" else (optimizer.SecondPass, "__enter__")
    state = torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr(*where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            opt.step(ours.closure(opt))
        np.testing.assert_array_equal(ours.flat(), before)
        if moment == "while the weights move":  # and without a closure
            ours.loss().backward()
            with pytest.raises(KeyboardInterrupt):
                opt.ascend()
            np.testing.assert_array_equal(ours.flat(), before)
    assert torch.equal(torch.get_rng_state(), state)
    opt.step(ours.closure(opt))


@pytest.mark.parametrize("with_block", [True, False])
def test_a_second_pass_that_fails_without_a_closure(with_block):
    ours = torch_problem()
    opt = build("look_sam", sgd(ours.params.values()))
    before = ours.flat()
    ours.loss().backward()
    if with_block:
        with pytest.raises(ValueError, match="failed"), opt.ascend():
            raise ValueError("failed")
    else:
        opt.ascend()
        assert np.any(ours.flat() != before)
        opt.restore()
    np.testing.assert_array_equal(ours.flat(), before)
    opt.restore()  # a second time does nothing
    np.testing.assert_array_equal(ours.flat(), before)
    opt.step(ours.closure(opt))
    assert opt.info.refreshed


def test_ascend_as_a_block_leaves_the_rules_gradient_behind():
    ours, reference = torch_problem(), torch_problem()
    opt, other = (build("look_sam", sgd(problem.params.values())) for problem in (ours, reference))
    before = ours.flat()
    opt.zero_grad()
    ours.loss().backward()
    with opt.ascend():
        ours.loss().backward()
    other.step(reference.closure(other))
    np.testing.assert_array_equal(ours.gradient(), reference.gradient())
    np.testing.assert_array_equal(ours.flat(), before)
    opt.step()
    np.testing.assert_array_equal(ours.flat(), reference.flat())


def test_calls_out_of_order():
    ours = torch_problem()
    opt = build("look_sam", sgd(ours.params.values()))
    before = ours.flat()
    with pytest.raises(RuntimeError, match="no parameter has a gradient"):
        opt.ascend()
    ours.loss().backward()
    with pytest.raises(RuntimeError, match="takes a second gradient; pass a closure, or call opt.ascend"):
        opt.step()
    opt.ascend()
    for wrong in (opt.ascend, lambda: opt.step(ours.closure(opt))):
        with pytest.raises(RuntimeError, match=r"after opt.ascend\(\)|called already"):
            wrong()
    for wrong in (opt.state_dict, lambda: opt.load_state_dict({})):
        with pytest.raises(RuntimeError, match="while the weights are at w"):
            wrong()
    with pytest.raises(RuntimeError, match="different scalers"):
        opt.step(scaler=torch.amp.GradScaler("cpu"))
    opt.restore()
    np.testing.assert_array_equal(ours.flat(), before)
    opt.step(ours.closure(opt))
    with pytest.raises(RuntimeError, match="takes no second gradient; check opt.needs_second_pass"):
        opt.ascend()


def test_the_phases_of_a_step():
    """The phases of a refresh and a reuse step with a closure, and of a step without one."""
    ours, phases = torch_problem(), []
    opt = build("look_sam", sgd(ours.params.values()))
    current = opt._passes.step

    def closure():
        phases.append(current.phase)
        return ours.closure(opt)()

    opt.step(closure)
    opt.step(closure)  # a reuse step
    assert phases == [Phase.CLEAN_PASS, Phase.PERTURBED, Phase.CLEAN_PASS] and current.phase is Phase.IDLE
    opt = build("look_sam", sgd(ours.params.values()))
    current, phases = opt._passes.step, []
    for call in (opt.zero_grad, lambda: ours.loss().backward(), opt.ascend, opt.zero_grad, opt.restore):
        call()
        phases.append(current.phase)
    assert phases == [Phase.IDLE, Phase.IDLE, Phase.PERTURBED, Phase.PERTURBED, Phase.IDLE]
    ours.loss().backward()
    with opt.ascend():
        ours.loss().backward()
    assert current.phase is Phase.READY and current.perturbed is None
    opt.step()
    assert current.phase is Phase.IDLE


@pytest.mark.parametrize("phase", [Phase.PERTURBED, Phase.READY, Phase.SKIPPED])
def test_after_an_ascent_only_a_step_or_a_restore_is_left(phase):
    ours, scaler = torch_problem(), torch.amp.GradScaler("cpu", init_scale=1.0)
    opt = build("look_sam", sgd(ours.params.values()))
    scaler.scale(ours.loss()).backward()
    if phase is Phase.SKIPPED:
        next(p for p in ours.params.values() if p.numel()).grad.fill_(torch.inf)
    ascent = opt.ascend(scaler=scaler)
    if phase is Phase.READY:
        with ascent:
            scaler.scale(ours.loss()).backward()
    assert opt._passes.step.phase is phase
    with pytest.raises(RuntimeError, match=r"opt.ascend\(\) was called already"):
        opt.ascend(scaler=scaler)
    with pytest.raises(RuntimeError, match=r"opt.step\(closure\) after opt.ascend\(\)"):
        opt.step(ours.closure(opt))
    assert opt._passes.step.phase is phase
    opt.restore()
    opt.step(ours.closure(opt))
    assert opt.info.refreshed and not opt.needs_second_pass


def test_zero_grad_after_the_second_pass_discards_it():
    ours = torch_problem()
    opt = build("look_sam", sgd(ours.params.values()))
    ours.loss().backward()
    with opt.ascend():
        ours.loss().backward()
    opt.zero_grad()
    assert opt.needs_second_pass
    ours.loss().backward()
    with pytest.raises(RuntimeError, match="takes a second gradient"):
        opt.step()


def test_gradients_left_over_do_not_pile_up():
    """A closure may forget zero_grad."""
    ours, careful = torch_problem(), torch_problem()
    opt, other = (build("look_sam", sgd(problem.params.values())) for problem in (ours, careful))
    for _ in range(PERIOD + 1):
        opt.step(lambda: ours.loss().backward())
        other.step(careful.closure(other))
        np.testing.assert_array_equal(ours.flat(), careful.flat())


@pytest.mark.parametrize("where", ["in the closure", "around the step"])
def test_bfloat16_autocast(where):
    """Autocast keeps its casts of the weights until it ends: around both passes, they would be those of w."""
    model = network()
    seen, opt = [], LookSAM(sgd(model.parameters(), lr=0.0), rho=0.5, k=2)

    def closure():
        opt.zero_grad()
        with torch.autocast(
            "cpu", torch.bfloat16, enabled=where == "in the closure" or torch.is_autocast_enabled("cpu")
        ):
            loss = ((model(X) - Y) ** 2).mean()
        loss.backward()
        seen.append((float(loss.detach()), gradients(model)))
        return loss

    with torch.autocast("cpu", torch.bfloat16, enabled=where == "around the step"):
        opt.step(closure)
        with torch.autocast("cpu", torch.bfloat16):
            after = model(X)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(after, model(X))  # nor are those of w + ε kept
    g, g_s = seen[0][1], seen[1][1]
    np.testing.assert_array_equal(gradients(model), g_s)
    with torch.no_grad():
        parts = np.split(0.5 * g / np.linalg.norm(g), np.cumsum([p.numel() for p in model.parameters()])[:-1])
        for p, part in zip(model.parameters(), parts, strict=True):
            p.add_(torch.tensor(part.reshape(p.shape), dtype=p.dtype))
        with torch.autocast("cpu", torch.bfloat16):
            there = ((model(X) - Y) ** 2).mean()
    assert seen[1][0] != seen[0][0]
    np.testing.assert_allclose(seen[1][0], float(there), rtol=1e-2)  # two bfloat16 roundings of w + ε
    norm = np.linalg.norm(g_s - (g @ g_s) / (g @ g) * g)
    np.testing.assert_allclose(float(opt.info.g_v_norm), norm, rtol=1e-5)  # not rounded to bfloat16


@every_rule
def test_accumulation_in_the_closure_is_the_full_batch(name):
    models = [network().double(), network().double()]
    opts = [build(name, torch.optim.AdamW(model.parameters())) for model in models]
    x, y = X.double(), Y.double()

    def in_parts(model, opt):
        def closure():
            opt.zero_grad()
            losses = [((model(a) - b) ** 2).mean() / 3 for a, b in zip(x.chunk(3), y.chunk(3), strict=True)]
            for loss in losses:
                loss.backward()
            return sum(loss.detach() for loss in losses)

        return closure

    for _ in range(PERIOD + 2):
        whole = opts[0].step(closure_for(models[0], opts[0], x, y))
        parts = opts[1].step(in_parts(models[1], opts[1]))
        np.testing.assert_allclose(whole.item(), parts.item(), rtol=1e-12)
        np.testing.assert_allclose(flat(models[0].parameters()), flat(models[1].parameters()), rtol=1e-11)


@every_rule
@pytest.mark.parametrize("form", ["closure", "two-phase"])
def test_clipping_acts_on_the_gradient_the_rule_returns(name, form):
    ours, plain = torch_problem(), torch_problem()
    opt, other = build(name, sgd(ours.params.values()), clip_norm=0.5), build(name, sgd(plain.params.values()))
    for _ in range(PERIOD + 1):
        with torch.no_grad():
            for p, q in zip(plain.params.values(), ours.params.values(), strict=True):
                p.copy_(q)
        take(ours, opt, form)
        other.step(plain.closure(other))
        expected = plain.gradient() * min(1, 0.5 / (np.linalg.norm(plain.gradient()) + 1e-6))
        np.testing.assert_allclose(ours.gradient(), expected, rtol=1e-12)
        if name in ONE_GRADIENT_RULES or opt.info.refreshed:
            np.testing.assert_allclose(opt.info.returned_norm, np.linalg.norm(plain.gradient()), rtol=1e-12)


def take(ours, opt, form):
    if form == "closure":
        opt.step(ours.closure(opt))
    else:
        step_without_closure(lambda: ours.loss().backward(), opt)


@every_rule
def test_clipping_a_gradient_of_zero_and_without_waiting_for_the_device(name, monkeypatch):
    w = torch.nn.Parameter(torch.ones(3))
    opt = build(name, sgd([w]), clip_norm=1.0)
    zeros, long = [torch.zeros(3)], [torch.tensor([0.0, 3.0, 4.0])]
    opt.step(given([w], opt, zeros, zeros))
    torch.testing.assert_close(w.detach(), torch.ones(3), rtol=0, atol=0)
    monkeypatch.setattr(tensors, "on_host", lambda x: False)
    with NoSync():
        opt.step(given([w], opt, long, long))
    torch.testing.assert_close(w.grad, torch.tensor([0.0, 0.6, 0.8]))


def test_a_gradient_that_was_changed_after_the_second_pass_is_clipped_as_it_is():
    ours = torch_problem()
    opt = build("sam", sgd(ours.params.values()), clip_norm=0.5)
    opt.zero_grad()
    ours.loss().backward()
    with opt.ascend():
        ours.loss().backward()
    for p in ours.params.values():
        p.grad *= 100
    opt.step()
    np.testing.assert_allclose(np.linalg.norm(ours.gradient()), 0.5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("what", ["model", "closure"])
def test_compiled(what, backend):
    """The compiled function sees w + ε, new weights and the same dropout."""
    torch._dynamo.reset()
    model, plain = (network(nn.BatchNorm1d(8), nn.Dropout(0.3)) for _ in range(2))
    trained = torch.compile(model, backend=backend) if what == "model" else model
    opt = LookSAM(sgd(model.parameters()), rho=0.2, k=2, model=trained)
    other = LookSAM(sgd(plain.parameters()), rho=0.2, k=2, model=plain)
    loss = lambda: ((trained(X) - Y) ** 2).mean()
    loss = torch.compile(loss, backend=backend) if what == "closure" else loss

    def closure():
        opt.zero_grad()
        value = loss()
        value.backward()
        return value

    for i in range(4):
        torch.manual_seed(i)
        opt.step(closure)
        torch.manual_seed(i)
        other.step(closure_for(plain, other))
    for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
