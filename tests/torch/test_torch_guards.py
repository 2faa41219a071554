"""Guard rails: steps without gradients, gradients that a closure would clear, and what is warned of."""

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
    network,
    sgd,
    step_without_closure,
    torch_problem,
)

from looksam.torch import LookSAM

every_rule = pytest.mark.parametrize("name", RULES)
two_gradient_rule = pytest.mark.parametrize("name", TWO_GRADIENT_RULES)


def momentum(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


@every_rule
@pytest.mark.parametrize("at", range(PERIOD + 1))
@pytest.mark.parametrize("form", ["closure", "two-phase"])
def test_a_step_without_gradients_does_nothing_and_does_not_count(name, at, form):
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build(name, momentum(problem.params.values())) for problem in (ours, plain))
    calls = []
    for i in range(2 * PERIOD):
        if i == at:
            before = ours.flat()
            if form == "closure":
                assert opt.step(lambda: (opt.zero_grad(), calls.append(1))[1]) is None
                assert len(calls) == 1  # no second pass
            else:
                opt.zero_grad()
                opt.step()
            np.testing.assert_array_equal(ours.flat(), before)
            assert opt.count == at
        opt.step(ours.closure(opt))
        other.step(plain.closure(other))
        np.testing.assert_array_equal(ours.flat(), plain.flat())


def test_a_step_at_w_plus_epsilon_without_gradients():
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build("msam", sgd(problem.params.values())) for problem in (ours, plain))
    opt.step(ours.closure(opt)), other.step(plain.closure(other))
    for _ in range(2):
        opt.zero_grad()
        before = ours.flat()
        with opt.ascend():
            assert np.any(ours.flat() != before)
        opt.step()
        np.testing.assert_array_equal(ours.flat(), before)
    assert opt.count == 1
    opt.step(ours.closure(opt)), other.step(plain.closure(other))
    np.testing.assert_array_equal(ours.flat(), plain.flat())


@two_gradient_rule
@pytest.mark.parametrize("form", ["closure", "with", "ascend"])
def test_a_second_pass_without_backward_raises(name, form):
    """Nothing is lost by it: the same step, taken again, is that of a run without the error."""
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build(name, momentum(problem.params.values())) for problem in (ours, plain))
    for _ in range(PERIOD):
        opt.step(ours.closure(opt)), other.step(plain.closure(other))
    before, calls = ours.flat(), []

    def forgetful():
        opt.zero_grad()
        calls.append(1)
        if len(calls) == 1:
            ours.loss().backward()

    def in_two_phases():
        forgetful()
        ascent = opt.ascend()
        if form == "with":
            with ascent:
                forgetful()
        else:
            forgetful()
        opt.step()

    with pytest.raises(RuntimeError, match=r"the second pass left no gradient; call loss.backward\(\) in it"):
        opt.step(forgetful) if form == "closure" else in_two_phases()
    np.testing.assert_array_equal(ours.flat(), before)
    assert opt.count == PERIOD
    opt.zero_grad()
    for _ in range(PERIOD):
        opt.step(ours.closure(opt)), other.step(plain.closure(other))
        np.testing.assert_array_equal(ours.flat(), plain.flat())


@every_rule
@pytest.mark.parametrize("steps", [0, 1, PERIOD])
@pytest.mark.parametrize("clear", [True, False])
def test_gradients_of_micro_batches_before_a_closure_raise(name, steps, clear):
    ours = torch_problem()
    opt, calls = build(name, sgd(ours.params.values())), []
    for _ in range(steps):
        opt.step(ours.closure(opt))
    before = ours.flat()
    if clear:
        opt.zero_grad()
    ours.loss().backward()
    gradient = ours.gradient()
    with pytest.raises(
        RuntimeError, match=r"parameters, the first of which is \d of group 0.*run all micro-batches in"
    ):
        opt.step(ours.closure(opt, calls))
    np.testing.assert_array_equal(ours.flat(), before)
    np.testing.assert_array_equal(ours.gradient(), gradient)
    assert calls == [] and opt.count == steps
    opt.zero_grad()
    opt.step(ours.closure(opt))


def clear_to_none(ours, opt):
    for p in ours.params.values():
        p.grad = None


@pytest.mark.parametrize(
    "between",
    [
        lambda ours, opt: None,
        clear_to_none,
        lambda ours, opt: opt.zero_grad(),
        lambda ours, opt: opt.zero_grad(set_to_none=False),
        lambda ours, opt: opt.base.zero_grad(set_to_none=False),
        lambda ours, opt: opt.load_state_dict(opt.state_dict()),
        lambda ours, opt: (opt.zero_grad(), ours.loss().backward(), opt.zero_grad(set_to_none=False)),
        lambda ours, opt: opt.add_param_group({"params": [nn.Parameter(torch.zeros(2))]}),
    ],
)
def test_what_may_come_between_two_steps(between):
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build("look_sam", sgd(problem.params.values())) for problem in (ours, plain))
    for i in range(PERIOD + 1):
        opt.step(ours.closure(opt)), other.step(plain.closure(other))
        if i < 1 or "add_param_group" not in between.__code__.co_names:
            between(ours, opt)
        np.testing.assert_array_equal(ours.flat(), plain.flat())


def test_a_step_after_one_that_failed():
    ours = torch_problem()
    opt = build("look_sam", sgd(ours.params.values()))

    def failing():
        ours.loss().backward()
        raise ValueError("after backward")

    for _ in range(2):
        with pytest.raises(ValueError, match="after backward"):
            opt.step(failing)
    opt.step(ours.closure(opt))


@pytest.mark.parametrize("when", ["clean", "second"])
def test_a_step_within_a_step_raises(when):
    ours = torch_problem()
    opt, calls = build("look_sam", sgd(ours.params.values())), []
    before = ours.flat()

    def closure():
        ours.closure(opt, calls)()
        if len(calls) == ("clean", "second").index(when) + 1:
            opt.step()

    with pytest.raises(RuntimeError, match=r"opt.step\(\) was called in its own closure"):
        opt.step(closure)
    np.testing.assert_array_equal(ours.flat(), before)
    opt.step(ours.closure(opt))


# Randomness in a loop without a closure.


def loop(model, opt, order, steps=PERIOD + 1):
    for _ in range(steps):
        x = X + 0.1 * torch.randn(X.shape)  # the loader draws from PyTorch's global generator
        if order == "zero_grad first":
            opt.zero_grad()
        ((model(x) - Y) ** 2).mean().backward()
        if opt.needs_second_pass:
            with opt.ascend():
                ((model(x) - Y) ** 2).mean().backward()
        opt.step()
        if order == "zero_grad last":
            opt.zero_grad()


def test_other_dropout_masks_in_the_second_pass_are_warned_of_once():
    model = network(nn.Dropout(0.3))
    opt = LookSAM(sgd(model.parameters()), rho=0.1, k=2, model=model)
    with pytest.warns(UserWarning, match=r"masks differ; call opt.zero_grad\(\) right before the clean pass") as seen:
        loop(model, opt, "zero_grad last")
    assert len(seen) == 1


@pytest.mark.parametrize("order", ["zero_grad first", "zero_grad last"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_same_masks_are_not_warned_of(order, rate):
    model = network(nn.Dropout(rate)) if rate else network()
    opt = LookSAM(sgd(model.parameters()), rho=0.1, k=2, model=model)
    if order == "zero_grad first" or not rate:
        loop(model, opt, order)  # warnings are errors here
    with pytest.raises(ValueError, match="failed"):  # nor is a pass that ends early
        opt.step(failing_in_the_second_pass(model, opt))


def failing_in_the_second_pass(model, opt):
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 2 or not opt.needs_second_pass:
            torch.rand(())
            raise ValueError("failed")
        return closure_for(model, opt)()

    return closure


# Running statistics.


def test_statistics_that_both_passes_update_are_warned_of_once():
    model = network(nn.BatchNorm1d(8))
    opt = LookSAM(sgd(model.parameters()), rho=0.1, k=2)
    with pytest.warns(UserWarning, match="a BatchNorm1d has running statistics, .*pass model= to the optimizer"):
        opt.step(closure_for(model, opt))
    for _ in range(3):
        opt.step(closure_for(model, opt))  # warnings are errors here


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("case", ["model", "eval", "no statistics", "another model", "one pass"])
def test_statistics_that_need_no_warning(name, case):
    if (case == "one pass") != (name in ONE_GRADIENT_RULES):
        return
    layer = nn.BatchNorm1d(8, track_running_stats=case != "no statistics")
    model, other = network(nn.LayerNorm(8) if case == "another model" else layer), network(layer)
    if case == "eval":
        layer.eval()
    opt = build(name, sgd(model.parameters()), **({"model": model} if case == "model" else {}))
    opt.step(closure_for(model, opt))
    assert len(flat(other.parameters())) > 0
    step_without_closure(lambda: ((model(X) - Y) ** 2).mean().backward(), opt)
