"""The wrapper together with PyTorch's schedulers, hooks and groups, and the package without JAX or without PyTorch."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler
from torch_problems import PERIOD, build, sgd, step_without_closure, torch_problem

import looksam.torch
from looksam.torch import LookSAM


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


BLOCKED = "import sys; sys.modules.update(jax=None, jaxlib=None, optax=None, flax=None); "


def test_import_never_loads_jax():
    unwanted = ("jax", "optax", "flax", "looksam.rules")
    assert run(f"import looksam.torch, sys; print([m for m in {unwanted} if m in sys.modules])").stdout == "[]\n"


def test_works_where_jax_is_not_installed():
    code = """
import torch
from looksam.torch import LookSAM
w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
opt = LookSAM(torch.optim.SGD([w], lr=0.1), rho=0.1)
for _ in range(2):
    opt.step(lambda: (w**2).sum().backward())
print(opt.info.refreshed)
"""
    result = run(BLOCKED + code)
    assert result.stdout == "False\n", result.stderr


def test_a_missing_torch_names_the_install_command():
    result = run("import sys; sys.modules['torch'] = None; import looksam, looksam.torch")
    assert "looksam.torch needs torch, which is not installed: pip install 'looksam[torch]'" in result.stderr
    result = run("import sys; sys.modules['torch'] = None; import looksam; looksam.sam(0.1); print('fine')")
    assert result.stdout == "fine\n", result.stderr


def test_public_names():
    names = looksam.torch.__all__
    assert names == sorted(names)
    for name in names:
        assert getattr(looksam.torch, name).__doc__


def test_it_is_an_optimizer_over_the_groups_and_state_of_its_base():
    ours = torch_problem()
    base = torch.optim.AdamW(ours.params.values())
    opt = build("look_sam", base)
    assert isinstance(opt, torch.optim.Optimizer)
    opt.step(ours.closure(opt))
    assert opt.param_groups is base.param_groups and opt.state is base.state
    base.load_state_dict(base.state_dict())  # which replaces both
    assert opt.param_groups is base.param_groups and opt.state is base.state
    assert repr(opt).startswith("LookSAM(rho=0.1, alpha=0.7, k=3, base=AdamW (")


SCHEDULERS = {
    "step": lambda opt: lr_scheduler.StepLR(opt, 2, 0.5),
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 10),
    "one cycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=10),  # asks for momentum in opt.defaults
    "sequential": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, 1.0, 2), lr_scheduler.ExponentialLR(opt, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("on", ["wrapper", "base"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_learning_rate_schedulers(scheduler, on):
    """Built on either optimizer, the base gets the rates it would get without the wrapper; warnings are errors here."""
    ours, plain = torch_problem(), torch_problem()
    base, other = (torch.optim.SGD(problem.params.values(), lr=0.05, momentum=0.9) for problem in (ours, plain))
    opt = build("look_sam", base)
    schedule = SCHEDULERS[scheduler](opt if on == "wrapper" else base)
    reference = SCHEDULERS[scheduler](other)
    for _ in range(6):
        opt.step(ours.closure(opt))
        schedule.step()
        other.step(plain.closure(other))
        reference.step()
        assert base.param_groups[0]["lr"] == other.param_groups[0]["lr"]
        assert base.param_groups[0]["momentum"] == other.param_groups[0]["momentum"]


def test_hooks():
    ours, seen = torch_problem(), []
    opt = build("look_sam", sgd(ours.params.values()))
    handle = opt.register_step_pre_hook(lambda optimizer, *_: seen.append(("before", optimizer)))
    opt.base.register_step_pre_hook(lambda optimizer, *_: seen.append(("before", optimizer)))
    opt.register_step_post_hook(lambda *_: seen.append("after"))
    opt.step(ours.closure(opt, seen))
    assert seen == [1, 1, ("before", opt), ("before", opt.base), "after"]
    handle.remove()
    seen.clear()
    opt.step(ours.closure(opt, seen))
    assert seen == [1, ("before", opt.base), "after"]
    opt.register_state_dict_pre_hook(lambda _: seen.append("saving"))
    opt.register_state_dict_post_hook(lambda _, state: {**state, "extra": 1})
    opt.register_load_state_dict_pre_hook(lambda _, state: {k: v for k, v in state.items() if k != "extra"})
    opt.register_load_state_dict_post_hook(lambda _: seen.append("loaded"))
    state = opt.state_dict()
    assert state["extra"] == 1
    opt.load_state_dict(state)
    assert seen[-2:] == ["saving", "loaded"] and set(opt.base.state_dict()) == {"state", "param_groups"}


@pytest.mark.parametrize("on", ["wrapper", "base"])
def test_a_hook_sees_the_gradient_that_the_rule_returns(on):
    """A hook that changes the gradient, in a closure and without, on refresh and on reuse steps."""
    ours, plain = torch_problem(), torch_problem()
    opt, other = (build("look_sam", sgd(problem.params.values())) for problem in (ours, plain))

    def halve(*_):
        for p in ours.params.values():
            p.grad *= 0.5

    (opt if on == "wrapper" else opt.base).register_step_pre_hook(halve)
    for i in range(2 * PERIOD):
        with torch.no_grad():
            for p, q in zip(plain.params.values(), ours.params.values(), strict=True):
                p.copy_(q)
        other.step(plain.closure(other))
        opt.step(ours.closure(opt)) if i % 2 else step_without_closure(lambda: ours.loss().backward(), opt)
        np.testing.assert_array_equal(ours.gradient(), 0.5 * plain.gradient())


@pytest.mark.parametrize("name", ["first_step", "second_step", "descent_step", "base_optimizer"])
def test_names_of_other_libraries_point_to_the_porting_page(name):
    opt = LookSAM(sgd([torch.nn.Parameter(torch.ones(2))]), rho=0.1)
    assert not hasattr(opt, name)
    with pytest.raises(AttributeError, match=rf"there is no .*{name}.*docs/porting.md"):
        getattr(opt, name)


def test_settings_that_can_be_assigned_and_those_that_cannot():
    ours = torch_problem()
    opt, calls = LookSAM(sgd(ours.params.values()), rho=0.1, k=5), []
    opt.k = 2
    for _ in range(4):
        opt.step(ours.closure(opt, calls))
    assert len(calls) == 6
    for name in ("rho", "alpha"):
        with pytest.raises(AttributeError, match=r"use opt.param_groups\[0\]\['rho'\]"):
            setattr(opt, name, 0.3)


def test_a_group_added_in_mid_training_is_trained_by_the_same_rule():
    """From the next refresh on, the result is as if the group had always been there."""
    ours, whole = torch_problem(), torch_problem()
    first, rest = list(ours.params.values())[:2], list(ours.params.values())[2:]
    for p in rest:
        p.requires_grad_(False)
    opt = build("look_sam", sgd(first))
    for _ in range(PERIOD):
        opt.step(ours.closure(opt))
    for p in rest:
        p.requires_grad_(True)
    opt.add_param_group({"params": rest})
    assert opt.param_groups[1]["rho"] == 0.1 and opt.param_groups[1]["alpha"] == 0.7
    with torch.no_grad():
        for p, q in zip(whole.params.values(), ours.params.values(), strict=True):
            p.copy_(q)
    other = build("look_sam", sgd(whole.params.values()))
    for _ in range(PERIOD):
        opt.step(ours.closure(opt))
        other.step(whole.closure(other))
        np.testing.assert_array_equal(ours.flat(), whole.flat())


def test_fused_and_foreach_bases():
    runs = []
    for options in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        ours = torch_problem(shapes={"matrix": (3, 2), "vector": (4,)})
        opt = LookSAM(torch.optim.AdamW(ours.params.values(), lr=0.05, **options), rho=0.1, k=2)
        for _ in range(4):
            opt.step(ours.closure(opt))
        runs.append(ours.flat())
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-12)
    np.testing.assert_allclose(runs[2], runs[1], rtol=1e-12)
