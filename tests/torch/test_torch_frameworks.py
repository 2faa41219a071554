"""What the integrations with frameworks share, and what they say where a framework is missing."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch_loops import BATCH, K, Net, dataset, rule

from looksam.torch.frameworks import InfoLog, Window


@pytest.mark.parametrize("name", ["lightning", "accelerate", "transformers"])
def test_a_missing_framework_names_the_install_command(name):
    code = f"import sys; sys.modules['{name}'] = None; import looksam.torch.{name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"ImportError: looksam.torch.{name} needs {name}, which is not installed: pip install" in result.stderr
    assert f"'looksam[{name}]'" in result.stderr


def test_no_framework_is_imported_with_the_rules():
    code = "import looksam.torch, sys; print({'lightning', 'accelerate', 'transformers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "set()\n", result.stderr


def backward_of(net, x, y):
    return lambda: nn.functional.cross_entropy(net(x), y).backward()


def batches(steps):
    x, y = dataset(steps, 1)
    return zip(x.split(BATCH), y.split(BATCH), strict=True)


def test_micro_batches_are_kept_only_where_a_second_pass_is_due():
    net = Net().double()
    opt = rule(net)
    window = Window(opt)
    for step, (x, y) in enumerate(batches(K + 1)):
        opt.zero_grad()
        window.run(backward_of(net, x, y), last=False)
        assert len(window._micro_batches) == (step % K == 0)
        window.run(backward_of(net, x, y), last=True)
        assert window._micro_batches == []
        opt.step()
    assert opt.count == K + 1


def test_gradients_are_averaged_over_ranks_in_the_last_micro_batch_only():
    net, seen = Net().double(), []

    class Unsynchronised:
        def __enter__(self):
            seen.append("not yet")

        def __exit__(self, *_):
            seen.append("from here on")

    window = Window(rule(net), Unsynchronised)
    for n, (x, y) in enumerate(batches(3)):

        def backward(n=n, x=x, y=y):
            seen.append(n)
            backward_of(net, x, y)()

        window.run(backward, last=n == 2)
    assert seen == [0, 1, 2, "not yet", 0, "from here on", "not yet", 1, "from here on", 2]


def test_the_log_has_each_step_once():
    net = Net().double()
    opt, log = rule(net), InfoLog()
    assert log.take() == {}
    log.add(opt.info)  # None before the first step
    for x, y in batches(K + 1):
        opt.step(lambda x=x, y=y: backward_of(net, x, y)())
        log.add(opt.info)
        log.add(opt.info)  # as after a step that did nothing
    values = log.take()
    assert values["looksam/refreshed"] == 2 / (K + 1) and values["looksam/fell_back"] == 0.0
    assert values["looksam/grad_norm"] == float(opt.info.grad_norm)
    assert log.take() == {}


def test_the_log_counts_steps_that_fell_back():
    w = nn.Parameter(torch.ones(2))
    opt, log = rule(nn.ParameterList([w])), InfoLog()
    passes = iter([1.0, float("inf"), 1.0])  # the second gradient of the first step is not finite
    for _ in range(2):

        def closure():
            w.grad = torch.full((2,), next(passes))

        opt.step(closure)
        log.add(opt.info)
    assert log.take()["looksam/fell_back"] == 0.5


class Counting(nn.Module):
    """A layer whose output depends on a buffer that every forward pass changes, as that of spectral norm does."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(2, 3)), []
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.seen.append(int(self.calls))
        self.calls += 1
        return x @ self.weight.T / self.calls


def test_the_second_pass_starts_from_the_buffers_of_the_clean_one():
    """Also where gradients are cleared between a forward and its backward pass, as Lightning does."""
    net = Counting()
    opt = rule(net)
    window = Window(opt)
    for n in range(3):

        def backward(n=n):
            loss = net(torch.arange(3.0) + n).square().sum()
            if n == 0:
                opt.zero_grad()
            loss.backward()

        window.run(backward, last=n == 2)
    assert net.seen == [0, 1, 2, 0, 1, 2] and int(net.calls) == 3
