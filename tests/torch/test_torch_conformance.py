"""The conformance suite: what every PyTorch rule must do."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch_problems import (
    ALPHA_RULES,
    BALL_RULES,
    LAYER_RULES,
    LOOK_RULES,
    ONE_GRADIENT_RULES,
    P_RULES,
    PERIOD,
    RULES,
    build,
    given,
    refreshes,
    saved_rule,
    sgd,
    torch_problem,
)
from torch_watch import NoSync

from looksam.torch import SAM, LayerSAM, LookLayerSAM, LookSAM, SAMk, tensors

every_rule = pytest.mark.parametrize("name", RULES)
look_rule = pytest.mark.parametrize("name", LOOK_RULES)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.05)


def run(ours, opt, steps):
    seen = []
    for _ in range(steps):
        opt.step(ours.closure(opt))
        seen.append((ours.gradient(), ours.flat()))
    return seen


def same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x[0], y[0])
        np.testing.assert_array_equal(x[1], y[1])


@every_rule
def test_zero_rho_is_the_base_optimizer(name):
    ours, plain = torch_problem(), torch_problem()
    opt, base = build(name, adamw(ours.params.values()), rho=0.0, full_info=True), adamw(plain.params.values())
    calls = []
    for i in range(2 * PERIOD + 1):
        assert not opt.needs_second_pass
        opt.step(ours.closure(opt, calls))
        base.step(plain.closure(base))
        np.testing.assert_array_equal(ours.flat(), plain.flat())
        assert len(calls) == i + 1  # no second gradient: it would be the same
        assert float(opt.info.g_v_norm) == 0.0 and opt.info.refreshed == (name in ONE_GRADIENT_RULES)


@pytest.mark.parametrize(
    ("ours", "plain"), [(SAMk, SAM), (LookSAM, SAM), (LookLayerSAM, LayerSAM)], ids=lambda cls: cls.__name__
)
def test_period_one_is_sam_and_keeps_nothing(ours, plain):
    a, b = torch_problem(), torch_problem()
    one, sam = ours(adamw(a.params.values()), 0.1, k=1), plain(adamw(b.params.values()), 0.1)
    same(run(a, one, 4), run(b, sam, 4))
    assert saved_rule(one) == saved_rule(sam)


@every_rule
def test_passes_are_counted(name):
    ours, calls, per_step = torch_problem(), [], []
    opt = build(name, sgd(ours.params.values()))
    for i in range(3 * PERIOD):
        expected = refreshes(name, i)
        assert opt.needs_second_pass == expected
        opt.step(ours.closure(opt, calls))
        assert opt.info.refreshed == (expected or name in ONE_GRADIENT_RULES)
        per_step.append(len(calls))
        calls.clear()
    assert per_step == [2 if refreshes(name, i) else 1 for i in range(3 * PERIOD)]


@pytest.mark.parametrize("name", BALL_RULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_move_by_rho_and_come_back_to_the_bit(name, dtype):
    ours = torch_problem(dtype=dtype)
    opt = build(name, sgd(ours.params.values(), lr=0.0), rho=0.25)
    before, seen = ours.flat(), []

    def closure():
        seen.append(ours.flat())
        return ours.closure(opt)()

    opt.step(closure)
    np.testing.assert_array_equal(seen[0], before)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 0.02}[dtype]
    np.testing.assert_allclose(np.linalg.norm(seen[1] - before), 0.25, rtol=tolerance)
    np.testing.assert_array_equal(ours.flat(), before)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_are_kept(name, dtype):
    ours = torch_problem(dtype=dtype)
    opt = build(name, sgd(ours.params.values()), full_info=True)
    for _ in range(2):
        opt.step(ours.closure(opt))
        assert {p.dtype for p in ours.params.values()} == {p.grad.dtype for p in ours.params.values()} == {dtype}
        assert opt.info.grad_norm.dtype == torch.float32  # norms accumulate in float32
        assert np.all(np.isfinite([float(x) for x in opt.info]))
    if name in LOOK_RULES or name in ONE_GRADIENT_RULES:
        assert {x.dtype for x in saved_rule(opt)["kept"].values()} == {dtype}


@every_rule
def test_norms_of_narrow_gradients_do_not_saturate(name):
    """Summed in bfloat16, 4096 ones stop at 256."""
    w = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
    opt = build(name, sgd([w]))
    opt.step(given([w], opt, [torch.ones_like(w)], [torch.ones_like(w)]))
    assert float(opt.info.grad_norm) == 64.0


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels_last", "sliced"])
def test_sums_over_long_tensors_are_exact(layout):
    """Three million entries in float32; PyTorch's own norm has an error of 1e-4 on a CPU."""
    random = torch.Generator().manual_seed(0)
    x, y = (torch.rand(24, 36, 60, 61, generator=random) for _ in range(2))
    views = {
        "contiguous": lambda x: x,
        "transposed": lambda x: x.transpose(0, 2),
        "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
        "sliced": lambda x: x[..., 1:],
    }
    x, y = views[layout](x), views[layout](y)
    wide = x.double(), y.double()
    np.testing.assert_allclose(float(tensors.squares([x], torch.float32)), float((wide[0] ** 2).sum()), rtol=2e-6)
    np.testing.assert_allclose(
        float(tensors.dots([x], [y], torch.float32)), float((wide[0] * wide[1]).sum()), rtol=2e-6
    )


def test_dots_pair_entries_whatever_the_layouts():
    random = torch.Generator().manual_seed(0)
    x, y = (torch.rand(4, 5, 6, 7, generator=random, dtype=torch.float64) for _ in range(2))
    other = y.contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(tensors.dots([x], [other], torch.float64), [float((x * y).sum())], rtol=1e-14)
    three = [float(z.sum()) for z in (x * x, x * y, y * y)]
    np.testing.assert_allclose(tensors.gram([x, x], [other, y], torch.float64), [2 * z for z in three], rtol=1e-14)


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("y_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("x_dtype", FLOATS, ids=str)
def test_sums_are_computed_wide_and_rounded_once(x_dtype, y_dtype):
    """Sums are wide also where all tensors are narrow, which PyTorch alone would add in their own dtype."""
    random = torch.Generator().manual_seed(0)
    shapes = ((), (7,), (3, 5), (0,), (tensors.CACHED + 1,))
    xs, ys = ([torch.randn(shape, generator=random).to(dtype) for shape in shapes] for dtype in (x_dtype, y_dtype))
    dtype = torch.promote_types(torch.promote_types(x_dtype, y_dtype), torch.float32)
    factor = torch.tensor(0.3, dtype=dtype)
    terms = [(x.double(), factor.double() * y.double()) for x, y in zip(xs, ys, strict=True)]

    def check(results):
        for result, (a, b) in zip(results, terms, strict=True):
            kind = torch.finfo(result.dtype)  # below its smallest normal number, it is spaced as there
            rounding = kind.eps / 2 * (a + b).abs().clamp(min=kind.smallest_normal)
            computing = torch.finfo(dtype).eps * (a.abs() + b.abs())
            assert torch.all((result.double() - (a + b)).abs() <= rounding + computing)

    for out_dtype in FLOATS:
        into = [torch.empty_like(x, dtype=out_dtype) for x in xs]
        tensors.add_into(into, xs, factor, ys, dtype)
        check(into)
    moved = tensors.copies(xs)
    tensors.add_scaled_(moved, [factor] * len(xs), ys, dtype)
    check(moved)


def test_an_older_pytorch_without_foreach_clone_does_the_same(monkeypatch):
    expected, ours = torch_problem(), torch_problem()
    steps = run(expected, build("look_sam", sgd(expected.params.values())), PERIOD + 1)
    monkeypatch.delattr(torch, "_foreach_clone", raising=False)
    same(steps, run(ours, build("look_sam", sgd(ours.params.values())), PERIOD + 1))


@pytest.mark.parametrize("name", [*LOOK_RULES, *ONE_GRADIENT_RULES])
def test_store_dtype_and_the_norm_of_what_is_kept(name):
    wide, narrow = torch_problem(), torch_problem()
    opts = [
        build(name, sgd(wide.params.values())),
        build(name, sgd(narrow.params.values()), store_dtype=torch.bfloat16),
    ]
    for ours, opt in zip((wide, narrow), opts, strict=True):
        opt.step(ours.closure(opt))
    exact, kept = (saved_rule(opt) for opt in opts)
    for i, x in kept["kept"].items():
        assert x.dtype == torch.bfloat16
        torch.testing.assert_close(x, exact["kept"][i].bfloat16(), rtol=0, atol=0)
    norm = torch.sqrt(sum(x.double().square().sum() for x in kept["kept"].values()))
    torch.testing.assert_close(kept["norm"], norm, rtol=1e-14, atol=0)
    for _ in range(PERIOD):  # reuse and the next refresh work from it
        opts[1].step(narrow.closure(opts[1]))
    assert not opts[1].info.fell_back


@every_rule
@pytest.mark.parametrize("steps", [PERIOD, PERIOD + 2])
def test_resume_in_mid_cycle_is_exact(name, steps):
    ours = torch_problem()
    opt = build(name, adamw(ours.params.values()))
    run(ours, opt, steps)
    file = io.BytesIO()
    torch.save({"params": ours.params, "opt": opt.state_dict()}, file)
    straight = run(ours, opt, PERIOD + 1)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = torch_problem(seed=9)  # other weights, then loaded
    again.problem = ours.problem
    with torch.no_grad():
        for key, p in again.params.items():
            p.copy_(saved["params"][key])
    resumed = build(name, adamw(again.params.values()))
    resumed.load_state_dict(saved["opt"])
    same(straight, run(again, resumed, PERIOD + 1))


@every_rule
def test_copies_and_pickles_resume_alike(name):
    ours = torch_problem()
    opt = build(name, adamw(ours.params.values()))
    run(ours, opt, PERIOD + 1)
    copied, (pickled, unpickled) = copy.deepcopy((ours, opt)), pickle.loads(pickle.dumps((ours, opt)))
    straight = run(ours, opt, PERIOD)
    same(straight, run(*copied, PERIOD))
    same(straight, run(pickled, unpickled, PERIOD))


@every_rule
def test_schedules_see_the_rules_own_count(name):
    """A function of the step count gives the same as a number set by hand before each step."""
    rho, alpha = (lambda count: 0.2 - 0.02 * count), (lambda count: 0.1 * count)
    scheduled, by_hand = torch_problem(), torch_problem()
    options = {"alpha": alpha} if name in ALPHA_RULES else {}
    ours = build(name, sgd(scheduled.params.values()), rho=rho, **options)
    other = build(name, sgd(by_hand.params.values()))
    for i in range(2 * PERIOD):
        group = other.param_groups[0]
        group["rho"] = rho(i)
        if name in ALPHA_RULES:
            group["alpha"] = alpha(i)
        same(run(scheduled, ours, 1), run(by_hand, other, 1))


@look_rule
def test_a_base_with_a_rho_or_alpha_of_its_own(name):
    """RMSprop's alpha and Adadelta's rho are not the rule's."""
    for make, key, value in ((torch.optim.RMSprop, "alpha", 0.99), (torch.optim.Adadelta, "rho", 0.9)):
        ours, reference = torch_problem(), torch_problem()
        opt = build(name, make(ours.params.values(), lr=0.0))
        plain = build(name, sgd(reference.params.values(), lr=0.0))
        same(run(ours, opt, 2), run(reference, plain, 2))
        assert opt.param_groups[0][key] == opt.defaults[key] == value


@every_rule
@pytest.mark.parametrize("p", [2.0, 3.0])
def test_no_step_waits_for_the_device(name, p, monkeypatch):
    """The path for accelerators gives the same result and reads no value."""
    plain, options = torch_problem(seed=3), {"p": p} if name in P_RULES else {}
    expected = run(plain, build(name, sgd(plain.params.values()), **options), PERIOD + 1)
    monkeypatch.setattr(tensors, "on_host", lambda x: False)
    ours = torch_problem(seed=3)
    opt = build(name, sgd(ours.params.values()), **options)
    with NoSync():
        steps = [(ours.gradient(), ours.flat()) for _ in range(PERIOD + 1) if opt.step(ours.closure(opt)) is not None]
    same(expected, steps)


@pytest.mark.parametrize("name", [*LOOK_RULES, *ONE_GRADIENT_RULES])
def test_memory_kept_is_one_copy(name):
    ours = torch_problem()
    opt = build(name, sgd(ours.params.values()))
    run(ours, opt, 2 * PERIOD)
    kept = sum(x.nbytes for x in saved_rule(opt)["kept"].values())
    assert kept == sum(p.nbytes for p in ours.params.values())


def test_the_saved_weights_live_in_the_old_g_v():
    """During a second pass no copy of the weights is made in addition to g_v."""
    ours = torch_problem()
    opt = build("look_sam", sgd(ours.params.values()))
    run(ours, opt, PERIOD)
    old = {x.data_ptr() for x in saved_rule(opt)["kept"].values() if x.numel()}
    before = ours.flat()
    opt.zero_grad()
    ours.loss().backward()
    opt.ascend()
    held = opt._passes.step.perturbed
    assert {x.data_ptr() for x in held.saved.copies if x.numel()} == old
    np.testing.assert_array_equal(np.concatenate([x.numpy().ravel() for x in held.saved.copies]), before)
    opt.restore()


@pytest.mark.parametrize("name", LAYER_RULES)
def test_layer_rules_ignore_the_scale_of_the_loss(name):
    params = [torch.nn.Parameter(x) for x in (torch.tensor([1.0, 2.0]), torch.tensor([[0.5]]))]
    opt, whole = build(name, sgd(params, lr=0.0), **({"k": 1} if name in LOOK_RULES else {})), np.sqrt(5.25)
    for size in (1.0, 1e-17, 1e17):
        seen, g = [], [torch.full_like(p, size) for p in params]
        inner = given(params, opt, g, g)

        def closure(seen=seen, inner=inner):
            seen.append([p.detach().clone() for p in params])
            inner()

        opt.step(closure)
        moved = [float(torch.linalg.norm(after - before)) for before, after in zip(*seen, strict=True)]
        np.testing.assert_allclose(moved, [0.1 * np.sqrt(5) / whole, 0.1 * 0.5 / whole], rtol=1e-5)
