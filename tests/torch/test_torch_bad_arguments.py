"""Bad arguments raise before any time is spent, with the value, the place and the fix; so do bad parameters."""

import numpy as np
import pytest
import torch
from torch_problems import RULES, TWO_GRADIENT_RULES, build, sgd

from looksam.torch import (
    ASAM,
    GSAM,
    MSAM,
    SAM,
    LayerSAM,
    LookLayerSAM,
    LookSAM,
    SAMk,
    SharpnessAware,
    every,
    global_perturbation,
    gsam_gradient,
    momentum_perturbation,
    reused_g_v,
)


def base(**options):
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, **options)


def grouped(**options):
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(2))], **options}], lr=0.1)


def named():
    return sgd([("w", torch.nn.Parameter(torch.ones(2)))])


def composed(**choices):
    return SharpnessAware(base(), global_perturbation(), 0.1, **choices)


def momentum(**choices):
    return SharpnessAware(base(), momentum_perturbation(), 0.1, **choices)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SAM(base(), -0.1), ValueError, r"rho=-0.1 .*rho >= 0"),
        (lambda: SAM(base(), float("nan")), ValueError, r"rho=nan"),
        (lambda: SAM(base(), torch.tensor(float("inf"))), ValueError, r"rho=inf"),
        (lambda: SAM(base(), "0.1"), TypeError, r"rho='0.1' is not a number"),
        (lambda: SAM(base(), True), TypeError, r"rho=True"),
        (lambda: SAM(base(), torch.ones(3)), ValueError, r"rho has shape \(3,\)"),
        (lambda: LookSAM(base(), 0.1, -1.0), ValueError, r"alpha=-1.0 .*alpha >= 0"),
        (lambda: LookLayerSAM(base(), 0.1, np.nan), ValueError, r"alpha=nan"),
        (lambda: SAMk(base(), 0.1, 0), ValueError, r"k=0 .*k >= 1"),
        (lambda: LookSAM(base(), 0.1, k=2.0), TypeError, r"k=2.0 is not an int"),
        (lambda: LookSAM(base(), 0.1, k=True), TypeError, r"k=True"),
        (lambda: SAM(base(), 0.1, p=1.0), ValueError, r"p=1.0 .*1 < p"),
        (lambda: LayerSAM(base(), 0.1, p=float("nan")), ValueError, r"p=nan"),
        (lambda: SAM(base(), 0.1, p="2"), TypeError, r"p='2'"),
        (lambda: LayerSAM(base(), 0.1, scaling="paper"), ValueError, r"scaling='paper'.*'literal'"),
        (lambda: LayerSAM(base(), 0.1, layers="weight"), TypeError, r"layers='weight' is not callable"),
        (lambda: LayerSAM(base(), 0.1, layers=str.upper), ValueError, r"parameter 0 of group 0 has none; pass model="),
        (lambda: LookSAM(base(), 0.1, store_dtype=torch.int8), TypeError, r"store_dtype=torch.int8"),
        (lambda: LookSAM(base(), 0.1, store_dtype="bfloat16"), TypeError, r"store_dtype=bfloat16"),
        (lambda: SAM(base(), 0.1, model=dict), TypeError, r"model is a type; pass the torch.nn.Module"),
        (lambda: SAM(base(), 0.1, clip_norm=0.0), ValueError, r"clip_norm=0.0 is out of range; pass clip_norm > 0"),
        (lambda: SAM(base(), 0.1, clip_norm="1"), TypeError, r"clip_norm='1' is not a number"),
        (lambda: SAM(base(), 0.1, per_rank=True), TypeError, r"model= to be a DistributedDataParallel"),
        (lambda: SAM(torch.optim.SGD, 0.1), TypeError, r"base=SGD is a class; pass an instance"),
        (lambda: SAM([torch.ones(2)], 0.1), TypeError, r"base is a list; pass a torch.optim.Optimizer"),
        (lambda: LookSAM(SAM(base(), 0.1), 0.1), TypeError, r"base is a SAM already; .*opt.base"),
        (lambda: SAM(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]), 0.1), TypeError, r"base is LBFGS"),
        (lambda: SAM(base(maximize=True), 0.1), ValueError, r"maximize=True.*negated loss"),
        (lambda: SAM(grouped(rho=-1.0), 0.1), ValueError, r"group 0: rho=-1.0"),
        (lambda: LookSAM(grouped(alpha="x"), 0.1), TypeError, r"group 0: alpha='x'"),
        (lambda: SAM(grouped(rho=0.2), lambda count: 0.1), ValueError, r"group 0 has rho=0.2, and rho is a function"),
        (lambda: SAM(base(), 0.1, start=-1), ValueError, r"start=-1"),
        (lambda: LookSAM(base(), 0.1, start=5, stop=5), ValueError, r"stop=5 is not after start=5"),
        (lambda: SAM(base(), 0.1, perturb="bias"), TypeError, r"perturb='bias' is not callable"),
        (lambda: SAM(base(), 0.1, perturb=str.isupper), ValueError, r"perturb= needs names, .*0 of group 0 has none"),
        (lambda: SAM(named(), 0.1, perturb=str.isupper), ValueError, r"none of the 1 parameters, .* is 'w'"),
        (lambda: MSAM(named(), 0.1, perturb=str.isupper), ValueError, r"none of the 1 parameters, .* is 'w'"),
        (lambda: SAM(grouped(perturb=False), 0.1), ValueError, r"perturb selects none of the 1 parameters"),
        (lambda: SAM(grouped(perturb="no"), 0.1), TypeError, r"group 0: perturb='no' is not a bool"),
        (lambda: SAM(base(), 0.1, rank=True), TypeError, r"unexpected keyword argument 'rank'"),
        (lambda: ASAM(base(), 0.1, eta=-1.0), ValueError, r"eta=-1.0 .*eta >= 0"),
        (lambda: ASAM(base(), 0.1, eta=None), TypeError, r"eta=None is not a number; pass a number >= 0"),
        (lambda: ASAM(base(), 0.1, p=0.5), ValueError, r"p=0.5"),
        (lambda: ASAM(base(), 0.1, scale=True), TypeError, r"scale=True is not callable"),
        (lambda: ASAM(base(), 0.1, scale=str.isupper), ValueError, r"scale= needs names, .*pass model="),
        (lambda: GSAM(base(), 0.1, -0.1), ValueError, r"alpha=-0.1 .*alpha >= 0"),
        (lambda: GSAM(base(), 0.1, None), TypeError, r"alpha=None is not a number"),
        (lambda: GSAM(grouped(alpha=-1.0), 0.1, 0.2), ValueError, r"group 0: alpha=-1.0"),
        (lambda: MSAM(base(), 0.1, 1.0), ValueError, r"momentum=1.0 is out of range; pass 0 <= momentum < 1"),
        (lambda: MSAM(base(), 0.1, "0.9"), TypeError, r"momentum='0.9' is not a number"),
        (lambda: MSAM(base(), 0.1, store_dtype=torch.int8), TypeError, r"store_dtype=torch.int8"),
        (lambda: MSAM(base(), 0.1, per_rank=True), ValueError, r"per_rank=True needs the clean gradient"),
        (lambda: momentum(schedule=every(3)), ValueError, r"k=3 needs the clean gradient, which a rule with the mom"),
        (lambda: momentum(refresh=gsam_gradient(0.1)), ValueError, r"gsam_gradient\(...\) needs the clean gradient"),
        (lambda: momentum(between=reused_g_v()), ValueError, r"reused_g_v\(...\) needs the clean gradient"),
        (lambda: composed(schedule=5), TypeError, r"schedule is a int; pass e.g. every\(5\)"),
        (
            lambda: composed(refresh=reused_g_v()),
            TypeError,
            r"refresh is a BetweenGradient; pass e.g. sam_gradient\(\)",
        ),
        (lambda: composed(between=0.7), TypeError, r"between is a float; pass e.g. plain_gradient\(\)"),
        (lambda: SharpnessAware(base(), "global", 0.1), TypeError, r"perturbation is a str; pass e.g. global_pert"),
        (lambda: gsam_gradient("0.1"), TypeError, r"alpha='0.1' is not a number"),
        (lambda: reused_g_v(0.7, "bfloat16"), TypeError, r"store_dtype=bfloat16"),
    ],
)
def test_constructors(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("k", 0, ValueError, r"k=0 .*k >= 1"),
        ("k", 2.5, TypeError, r"k=2.5 is not an int"),
        ("count", -1, ValueError, r"count=-1 is out of range; pass count >= 0"),
        ("count", True, TypeError, r"count=True is not an int"),
    ],
)
def test_attributes(name, value, error, message):
    opt = LookSAM(base(), 0.1, k=3)
    with pytest.raises(error, match=message):
        setattr(opt, name, value)
    assert (opt.k, opt.count) == (3, 0)


def test_the_period_of_msam_cannot_be_set():
    opt = MSAM(base(), 0.1)
    with pytest.raises(AttributeError, match="k=5 cannot be set: with the momentum perturbation every step"):
        opt.k = 5
    assert opt.k == 1


def test_alpha_of_one_and_rho_of_zero_are_fine():
    LookSAM(base(), 0.0, 1.0)
    LookSAM(base(), torch.tensor(0.1), 1)


@pytest.mark.parametrize("name", RULES)
def test_complex_parameters_are_refused(name):
    w = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"parameter 'phase' is torch.complex64.*view_as_real"):
        build(name, sgd([("phase", w)]))
    opt = build(name, sgd([torch.nn.Parameter(torch.ones(2))]))
    with pytest.raises(TypeError, match="parameter 0 of group 1 is torch.complex64"):
        opt.add_param_group({"params": [w]})


@pytest.mark.parametrize("name", RULES)
def test_sparse_gradients_are_refused_in_either_pass(name):
    table = torch.nn.Embedding(5, 2, sparse=True)
    opt = build(name, sgd(table.parameters()), model=table)
    before = table.weight.detach().clone()

    def closure():
        opt.zero_grad()
        table(torch.tensor([1, 2])).square().sum().backward()

    with pytest.raises(TypeError, match=r"gradient of 'weight' has layout torch.sparse_coo.*sparse=False"):
        opt.step(closure)
    passes = []

    def sparse_later():
        table.sparse = bool(passes)
        passes.append(1)
        closure()

    if name in TWO_GRADIENT_RULES:
        with pytest.raises(TypeError, match=r"gradient of 'weight' has layout"):
            opt.step(sparse_later)
        assert len(passes) == 2
    assert torch.equal(table.weight, before)


def test_a_schedule_that_goes_wrong_says_when():
    w = torch.nn.Parameter(torch.ones(3))
    opt = SAM(sgd([w]), lambda count: 0.1 - 0.1 * count)
    closure = lambda: (w**2).sum().backward()
    opt.step(closure)
    opt.step(closure)
    before = w.detach().clone()
    with pytest.raises(ValueError, match=r"rho\(2\)=-0.1 is out of range"):
        opt.step(closure)
    assert torch.equal(w, before)
