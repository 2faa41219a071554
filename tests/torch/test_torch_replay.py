"""The second pass starts where the clean pass started, in randomness and buffers, and leaves what that one left."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch_problems import LOOK_RULES, PERIOD, X, Y, build, closure_for, network, sgd

from looksam.torch import SAM, LookSAM


class Noise(nn.Module):
    """A layer that draws from PyTorch, Python and NumPy."""

    def forward(self, x):
        x = nn.functional.dropout(x, 0.4, self.training)
        return x * random.choice([1.0, 2.0]) * float(np.random.rand())


def two_phase(model, opt):
    opt.zero_grad()
    ((model(X) - Y) ** 2).mean().backward()
    if opt.needs_second_pass:
        with opt.ascend():
            ((model(X) - Y) ** 2).mean().backward()
    opt.step()


@pytest.mark.parametrize("form", ["closure", "two-phase"])
@pytest.mark.parametrize("name", LOOK_RULES)
def test_both_passes_draw_the_same(name, form):
    """With a ρ that rounds to 0 both gradients are equal, so that g_v is 0; and a step draws as often as one pass."""
    model = network(Noise())
    opt = build(name, sgd(model.parameters()), rho=1e-60)
    for _ in range(PERIOD + 1):
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        model(X)
        after = torch.get_rng_state(), random.random(), np.random.rand()
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        opt.step(closure_for(model, opt)) if form == "closure" else two_phase(model, opt)
        assert torch.equal(torch.get_rng_state(), after[0])
        assert (random.random(), np.random.rand()) == after[1:]
        assert float(opt.info.g_v_norm) == 0.0
    opt = build(name, sgd(model.parameters()))  # and not always
    opt.step(closure_for(model, opt))
    assert float(opt.info.g_v_norm) > 0.0


class Memory(nn.Module):
    """A layer that keeps and uses a running mean: the second pass must not see the clean pass's update."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("expanded", torch.ones(1).expand(8), persistent=False)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)  # replaces the buffer
        return x + self.mean * self.expanded


@pytest.mark.parametrize("form", ["closure", "two-phase"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.BatchNorm1d(8),
        lambda: nn.BatchNorm1d(8, momentum=None),
        lambda: nn.Sequential(nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten()),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        Memory,
    ],
    ids=["batch", "batch, cumulative", "instance", "spectral", "own"],
)
def test_buffers_come_from_the_clean_pass(layer, form):
    model, once = network(layer()), network(layer())
    once.load_state_dict(model.state_dict())
    opt = LookSAM(sgd(model.parameters()), rho=0.3, k=2, model=model)
    for i in range(3):
        once.load_state_dict(model.state_dict())
        opt.step(closure_for(model, opt)) if form == "closure" else two_phase(model, opt)
        once(X)
        for ours, expected in zip(model.buffers(), once.buffers(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=0)
        assert opt.needs_second_pass == (i % 2 == 1)
    still = SAM(sgd(model.parameters()), rho=1e-60, model=model, full_info=True)  # rounds to 0
    still.step(closure_for(model, still))
    assert float(still.info.g_v_norm) == 0.0  # the second pass was the first again


def test_buffers_are_left_alone_where_no_model_is_passed():
    """Without a model nothing is restored; the tests above would notice."""
    model, once = network(nn.BatchNorm1d(8)), network(nn.BatchNorm1d(8))
    opt = SAM(sgd(model.parameters()), rho=0.3)
    with pytest.warns(UserWarning, match="running statistics"):
        opt.step(closure_for(model, opt))
    once(X)
    assert not torch.equal(model[1].running_mean, once[1].running_mean)
