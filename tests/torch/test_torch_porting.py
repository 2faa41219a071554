"""The code of docs/porting.md, as printed there: before and after, on a network without dropout and statistics."""

import copy
import functools

import pytest
import recipes
import torch
from torch import nn

import looksam.torch

pytorch_optimizer = pytest.importorskip("pytorch_optimizer")

PAGE = "porting.md"
blocks = functools.partial(recipes.blocks, PAGE)
DATA = torch.Generator().manual_seed(0)
LOADER = [(torch.randn(8, 6, generator=DATA), torch.randint(3, (8,), generator=DATA)) for _ in range(7)]


def trained(code, package, model=None, **names):
    """Runs the code with the rules of a package, and returns the parameters as one vector."""
    if model is None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    rules = {name: getattr(package, name) for name in ("SAM", "LookSAM")}
    space = {
        "torch": torch,
        "model": model,
        "loader": LOADER,
        "criterion": nn.functional.cross_entropy,
        **rules,
        **names,
    }
    recipes.run(code, PAGE, space)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_sam_from_first_step_and_second_step():
    """The SAM of pytorch_optimizer has the same methods as that of davda54/sam."""
    before, *after = blocks("davda54/sam")
    expected = trained(before, pytorch_optimizer)
    for code in after:
        torch.testing.assert_close(trained(code, looksam.torch), expected, rtol=1e-5, atol=1e-7)
    assert len(after) == 2


def test_adaptive_sam():
    before, _, after = blocks("davda54/sam")
    expected = trained(before.replace("rho=0.05", "rho=0.5, adaptive=True"), pytorch_optimizer)
    code = after.replace("SAM(", "ASAM(").replace("rho=0.05", "rho=0.5, eta=0.0")
    ours = trained(code, looksam.torch, ASAM=looksam.torch.ASAM)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


class OneTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        return torch.tanh(x) @ self.weight


def test_look_sam_is_the_same_for_one_tensor_and_another_algorithm_for_several():
    before, after = blocks("pytorch_optimizer")
    expected = trained(before, pytorch_optimizer, OneTensor())
    torch.testing.assert_close(trained(after, looksam.torch, OneTensor()), expected, rtol=1e-4, atol=1e-6)
    difference = trained(after, looksam.torch) - trained(before, pytorch_optimizer)
    assert difference.abs().max() > 1e-4


def test_a_pass_before_the_closure_is_refused():
    before, _ = blocks("pytorch_optimizer")
    code = before.replace("model.parameters(), torch.optim.AdamW,", "torch.optim.AdamW(model.parameters()),")
    with pytest.raises(RuntimeError, match="gradients of a backward pass since the last step"):
        trained(code.replace(", lr=1e-3)", ")"), looksam.torch)


def test_gsam():
    """The same numbers: both decompose g over the whole vector."""

    class Constant:
        def step(self):
            return 0.1

    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))]
    models.append(copy.deepcopy(models[0]))
    bases = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    ours = looksam.torch.GSAM(bases[0], rho=0.1, alpha=0.4, model=models[0])
    theirs = pytorch_optimizer.GSAM(models[1].parameters(), bases[1], models[1], Constant(), alpha=0.4)
    for x, y in LOADER:
        ours.step(lambda x=x, y=y: nn.functional.cross_entropy(models[0](x), y).backward())
        theirs.set_closure(nn.functional.cross_entropy, x, y)
        theirs.step()
    first, second = (nn.utils.parameters_to_vector(model.parameters()) for model in models)
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


def test_the_steps_of_composer():
    _, code = blocks("Composer")
    model, seen = nn.Linear(6, 3), []
    space = {"torch": torch, "model": model, "SAMk": looksam.torch.SAMk}
    recipes.run(code.replace(", per_rank=True", ""), PAGE, space)
    for x, y in LOADER * 2:
        space["optimizer"].step(lambda x=x, y=y: nn.functional.cross_entropy(model(x), y).backward())
        seen.append(space["optimizer"].info.refreshed)
    interval = 5
    assert seen == [(step + 1) % interval == 0 for step in range(len(seen))]
