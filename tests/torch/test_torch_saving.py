"""Saving and loading: what a state dict holds, wrong ones, plain ones, and torch.distributed.checkpoint."""

import copy
import io

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch_problems import PERIOD, RULES, X, Y, build, closure_for, flat, network, saved_rule, sgd, torch_problem

from looksam.torch import MSAM, SAM, LookSAM

BASES = {"sgd": sgd, "adamw": lambda params: torch.optim.AdamW(params, lr=0.05)}


def trained(name, **options):
    ours = torch_problem()
    opt = build(name, torch.optim.AdamW(ours.params.values()), **options)
    opt.step(ours.closure(opt))
    return ours, opt


def rule(state, i=1):
    return state["state"][i]["rule"]


def nan_in_g_v(state):
    rule(state)["kept"] = torch.full_like(rule(state)["kept"], torch.nan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: [entry.pop("rule") for entry in state["state"].values()],
            r"no 'rule'.*opt.base.load_state_dict",
        ),
        (lambda state: state.clear(), r"this state dict has no param_groups, state; save opt.state_dict\(\)"),
        (lambda state: rule(state).pop("kept"), r"'rule' of parameter 1 in this state dict has no kept"),
        (lambda state: rule(state).update(count=-1), r"'rule' of parameter 1 .* has count=-1"),
        (lambda state: rule(state).update(count=1.5), r"count=1.5"),
        (lambda state: rule(state).update(count=7), r"count=1 for parameter 0 and count=7 for parameter 1"),
        (lambda state: rule(state).update(keeps="v"), r"keeps v, and this one keeps g_v"),
        (lambda state: rule(state).update(kept=torch.ones(7)), r"g_v of shape \(7,\), and the parameter's is \(3, 2\)"),
        (lambda state: rule(state).update(kept="g_v"), r"'g_v' as its g_v; it must be a floating-point tensor"),
        (nan_in_g_v, r"'rule' of parameter 1 .* has a g_v that is not finite"),
        (lambda state: rule(state).update(norm=torch.tensor(-1.0)), r"norm=tensor\(-1.\); it must be .* >= 0"),
        (lambda state: rule(state).update(norm=torch.tensor(torch.inf)), r"norm=tensor\(inf\)"),
        (lambda state: rule(state).update(norm=None), r"norm=None"),
        (lambda state: rule(state).update(norm=torch.tensor(3.0)), r"norm=.* for parameter 0 and norm=3.0 for .* 1"),
        (lambda state: state["param_groups"][0]["params"].pop(), r"is of 5 parameters, and the optimizer has 6"),
        (lambda state: state["param_groups"].append({"params": []}), r"different number of parameter groups"),
        (lambda state: state["param_groups"][0].update(rho=-0.1), r"group 0: rho=-0.1"),
        (lambda state: state["param_groups"][0].update(alpha=torch.nan), r"group 0: alpha=nan"),
        (lambda state: state["param_groups"][0].update(maximize=True), r"group 0 has maximize=True"),
    ],
)
def test_a_wrong_state_changes_nothing(change, message):
    _, other = trained("look_sam")
    state = other.state_dict()
    change(state)
    _, opt = trained("look_sam")
    before = opt.state_dict()
    kept = {k: v.clone() for k, v in saved_rule(opt)["kept"].items()}
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(state)
    after = opt.state_dict()
    assert opt.count == 1 and after["param_groups"] == before["param_groups"]
    assert all(torch.equal(saved_rule(opt)["kept"][k], v) for k, v in kept.items())
    assert after["state"][1]["exp_avg"] is before["state"][1]["exp_avg"]


def test_a_base_that_fails_while_it_loads_is_put_back():
    class Picky(torch.optim.SGD):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            raise ValueError("too late")

    ours = torch_problem()
    opt = build("look_sam", Picky(ours.params.values(), lr=0.05, momentum=0.9))
    opt.step(ours.closure(opt))
    state = copy.deepcopy(opt.state_dict())
    state["param_groups"][0]["lr"] = 7.0
    opt.step(ours.closure(opt))
    buffers = {p: entry["momentum_buffer"] for p, entry in opt.state.items()}
    with pytest.raises(ValueError, match="too late"):
        opt.load_state_dict(state)
    assert opt.count == 2 and opt.param_groups[0]["lr"] == 0.05
    assert all(opt.state[p]["momentum_buffer"] is x for p, x in buffers.items())


def test_state_of_another_rule():
    _, sam = trained("sam")
    _, look = trained("look_sam")
    with pytest.raises(ValueError, match="keeps nothing, and this one keeps g_v; build the rule that was saved"):
        look.load_state_dict(sam.state_dict())
    with pytest.raises(ValueError, match="keeps g_v, and this one keeps nothing"):
        sam.load_state_dict(look.state_dict())


def test_a_plain_state_can_be_taken_over_by_the_base():
    """The groups keep their ρ, α and perturb, which a plain optimizer does not save."""
    ours = torch_problem()
    plain = torch.optim.AdamW([{"params": [p]} for p in ours.params.values()])
    plain.step(ours.closure(plain))
    file = io.BytesIO()
    torch.save(plain.state_dict(), file)
    file.seek(0)
    again = torch_problem()
    own = [{"rho": 0.3, "alpha": 0.2}, {"perturb": False}]
    groups = [{"params": [p]} | (own[i] if i < 2 else {}) for i, p in enumerate(again.params.values())]
    opt = build("look_sam", torch.optim.AdamW(groups))
    saved = torch.load(file, weights_only=True)
    opt.base.load_state_dict(saved)
    assert [group["rho"] for group in opt.param_groups] == [0.3] + [0.1] * 5
    assert [group["alpha"] for group in opt.param_groups] == [0.2] + [0.7] * 5
    assert [group.get("perturb") for group in opt.param_groups] == [None, False] + [None] * 4
    assert opt.state[groups[1]["params"][0]]["step"] == 1 and "rho" not in saved["param_groups"][0]
    w, params = again.flat(), list(again.params.values())
    opt.step(again.closure(opt))
    g = again.problem.gradient(w)
    bounds = np.cumsum([0] + [p.numel() for p in params])
    epsilon, moved = 0.1 * g, g.copy()
    epsilon[: bounds[1]] *= 3
    epsilon[bounds[1] : bounds[2]] = moved[bounds[1] : bounds[2]] = 0
    g_s = again.problem.gradient(w + epsilon / np.linalg.norm(moved))
    np.testing.assert_allclose(again.gradient(), g_s, rtol=1e-10, atol=1e-10)


def test_the_base_takes_nothing_of_the_rule():
    _, opt = trained("look_sam")
    opt.base.load_state_dict(opt.state_dict())
    assert {name for entry in opt.base.state.values() for name in entry} == {"step", "exp_avg", "exp_avg_sq"}


def test_a_schedule_stays_where_a_number_was_saved():
    ours, opt = trained("sam")
    scheduled = build("sam", torch.optim.AdamW(ours.params.values()), rho=lambda count: 0.2)
    scheduled.load_state_dict(opt.state_dict())
    assert "rho" not in scheduled.param_groups[0]
    scheduled.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_keep_their_settings_when_they_load(copied):
    opt = copied(SAM(sgd([torch.nn.Parameter(torch.ones(2))]), 0.3))
    plain = sgd([torch.nn.Parameter(torch.ones(2))])
    opt.base.load_state_dict(plain.state_dict())
    assert opt.param_groups[0]["rho"] == 0.3


# torch.distributed.checkpoint, in one process; test_torch_ranks.py has two.


def wide_network():
    return network().double()


def steps(model, opt, number):
    seen = []
    for _ in range(number):
        opt.step(closure_for(model, opt, X.double(), Y.double()))
        opt.zero_grad()  # with gradients left over, torch would take no step to create the state
        seen.append(flat(model.parameters()))
    return seen


def resumed(model, make, number, load):
    """Returns steps of a new optimizer over a copy of the model, after ``load(model, optimizer)``."""
    model = copy.deepcopy(model)
    opt = make(model.parameters())
    load(model, opt)
    return steps(model, opt, number)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("taken", [0, 1, PERIOD + 1])
@pytest.mark.parametrize("name", RULES)
def test_distributed_checkpoint_in_memory(name, taken, base):
    model, make = wide_network(), lambda params: build(name, BASES[base](params))
    opt = make(model.parameters())
    steps(model, opt, taken)
    before = copy.deepcopy(model)
    state = copy.deepcopy(get_optimizer_state_dict(model, opt))
    assert opt.count == taken
    np.testing.assert_array_equal(flat(model.parameters()), flat(before.parameters()))
    straight = steps(model, opt, PERIOD + 1)
    again = resumed(before, make, PERIOD + 1, lambda model, opt: set_optimizer_state_dict(model, opt, state))
    np.testing.assert_array_equal(straight, again)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", ["sharded", "full"])
@pytest.mark.parametrize("taken", [0, 1, PERIOD + 1])
@pytest.mark.parametrize("name", ["sam", "look_sam", "msam"])
def test_distributed_checkpoint_in_files(name, taken, kind, tmp_path):
    """A checkpoint is read into what a new optimizer returns, so that must have a place for all that is saved."""
    options = StateDictOptions(full_state_dict=kind == "full")
    model, make = wide_network(), lambda params: build(name, BASES["adamw"](params))
    opt = make(model.parameters())
    steps(model, opt, taken)
    before = copy.deepcopy(model)
    dcp.save({"optimizer": get_optimizer_state_dict(model, opt, options=options)}, checkpoint_id=tmp_path)
    straight = steps(model, opt, PERIOD + 1)

    def load(model, opt):
        state = {"optimizer": get_optimizer_state_dict(model, opt, options=options)}
        dcp.load(state, checkpoint_id=tmp_path)
        set_optimizer_state_dict(model, opt, state["optimizer"], options=options)

    np.testing.assert_array_equal(straight, resumed(before, make, PERIOD + 1, load))


def test_distributed_checkpoint_of_a_parameter_without_g_v():
    """One that no batch uses has no g_v and stays where it is, also under weight decay; a zero g_v would move it."""
    model, make = wide_network(), lambda params: LookSAM(BASES["adamw"](params), 0.1, k=3)
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))
    opt = make(model.parameters())
    get_optimizer_state_dict(model, opt)  # or the base has no state for it, and torch refuses to load
    steps(model, opt, 1)
    state, before = copy.deepcopy(get_optimizer_state_dict(model, opt)), copy.deepcopy(model)
    straight = steps(model, opt, 2)
    assert torch.equal(model.unused, torch.ones_like(model.unused))
    again = resumed(before, make, 2, lambda model, opt: set_optimizer_state_dict(model, opt, state))
    np.testing.assert_array_equal(straight, again)


@pytest.mark.parametrize("make", [lambda base: LookSAM(base, 0.1, k=3, start=4), lambda base: MSAM(base, 0.1)])
def test_distributed_checkpoint_takes_no_step_of_its_own(make):
    """Where the base keeps no state, torch takes a step with gradients of 0 at every call."""
    model, plain = wide_network(), wide_network()
    opt, other = make(sgd(model.parameters())), make(sgd(plain.parameters()))
    for i in range(7):
        get_optimizer_state_dict(model, opt)
        assert opt.count == i
        np.testing.assert_array_equal(steps(model, opt, 1), steps(plain, other, 1))


def test_flattened_distributed_checkpoints_are_refused_when_saved():
    """Torch would drop the rule's part when it loads them."""
    model = wide_network()
    opt = LookSAM(sgd(model.parameters()), 0.1)
    with pytest.raises(NotImplementedError, match="only supports tensor, int, float, dict states"):
        get_optimizer_state_dict(model, opt, options=StateDictOptions(flatten_optimizer_state_dict=True))
