"""Buffers around the second pass: those that training never changes are not copied, however they change later."""

import gc

import pytest
import torch
from torch import nn
from torch_problems import X, Y, closure_for, network, sgd

from looksam.torch import SAM, LookSAM
from looksam.torch.buffers import LARGE, RecordedBuffers

SIZE = LARGE  # entries of four bytes: a large buffer


class Table(nn.Module):
    """A layer with a large buffer, which changes in the ways and on the forward passes it is asked to."""

    def __init__(self, change=None, on=()):
        super().__init__()
        self.change, self.on, self.calls = change, on, 0
        self.register_buffer("table", torch.linspace(0, 1, SIZE))

    def forward(self, x):
        self.calls += 1
        step = x.detach().mean()
        if self.calls in self.on:
            if self.change == "in place":
                self.table += step
            elif self.change == "by .data":
                self.table.data.add_(step)
            else:
                self.table = self.table + step
        return x + self.table[:8]


def copied(monkeypatch):
    """Returns a list to which every step adds the bytes of the buffers that it copies."""
    sizes, init = [], RecordedBuffers.__init__

    def counting(self, *arguments):
        init(self, *arguments)
        sizes.append(sum(x._copy.nbytes for x in self._large))

    monkeypatch.setattr(RecordedBuffers, "__init__", counting)
    return sizes


def test_a_constant_buffer_is_copied_once_and_freed(monkeypatch):
    model, sizes = network(Table(), nn.BatchNorm1d(8)), copied(monkeypatch)
    opt = SAM(sgd(model.parameters()), rho=0.1, model=model)
    for _ in range(3):
        opt.step(closure_for(model, opt))
    assert sizes == [4 * SIZE, 0, 0]
    gc.collect()
    assert sum(type(x) is torch.Tensor and x.nbytes == 4 * SIZE for x in gc.get_objects()) == 1


ALWAYS = range(1, 100)


@pytest.mark.parametrize("change", ["in place", "by .data", "by assignment"])
@pytest.mark.parametrize("form", ["closure", "two-phase"])
def test_a_large_buffer_that_changes_comes_from_the_clean_pass(change, form):
    """With a ρ that rounds to 0 the second pass is the clean one again, if it starts from the same buffers."""
    model, once = network(Table(change, ALWAYS)), network(Table(change, ALWAYS))
    opt = SAM(sgd(model.parameters()), rho=1e-60, model=model, full_info=True)
    for _ in range(3):
        once.load_state_dict(model.state_dict())
        if form == "closure":
            opt.step(closure_for(model, opt))
        else:
            opt.zero_grad()
            ((model(X) - Y) ** 2).mean().backward()
            with opt.ascend():
                ((model(X) - Y) ** 2).mean().backward()
            opt.step()
        once(X)
        torch.testing.assert_close(model[1].table, once[1].table, rtol=0, atol=0)
        assert float(opt.info.g_v_norm) == 0.0


@pytest.mark.parametrize("change", ["in place", "by assignment"])
def test_a_buffer_that_was_constant_until_now(change, monkeypatch):
    """It is noticed in the clean pass that changes it first, and copied from then on."""
    sizes = copied(monkeypatch)
    model, once = (network(Table(change, on)) for on in (ALWAYS[4:], ALWAYS[2:]))
    opt = SAM(sgd(model.parameters()), rho=0.1, model=model)
    for _ in range(4):
        with torch.no_grad():
            for p, q in zip(once.parameters(), model.parameters(), strict=True):
                p.copy_(q)
        opt.step(closure_for(model, opt))
        once(X)
        torch.testing.assert_close(model[1].table, once[1].table, rtol=0, atol=0)
    assert sizes == [4 * SIZE, 0, 0, 4 * SIZE]


def test_a_buffer_changed_between_steps_is_copied_again(monkeypatch):
    model, sizes = network(Table()), copied(monkeypatch)
    opt = LookSAM(sgd(model.parameters()), rho=0.1, k=2, model=model)
    for i in range(6):
        opt.step(closure_for(model, opt))
        if i == 2:
            model[1].table.zero_()
    assert sizes == [4 * SIZE, 0, 4 * SIZE]


def test_buffers_under_inference_mode_and_none():
    with torch.inference_mode():
        table = torch.ones(SIZE)
    model = network(Table())
    model[1].register_buffer("table", table)
    model[1].register_buffer("nothing", None)
    opt = SAM(sgd(model.parameters()), rho=0.1, model=model)
    for _ in range(2):
        opt.step(closure_for(model, opt))
