"""Accelerate's loop on two processes, for test_torch_accelerate.py: python torch_accelerate_ranks.py FOLDER."""

import os
import pathlib
import sys

import torch
from torch import nn

from looksam.torch import LookSAM

RANKS, STEPS, ACCUMULATE, SIZE = 2, 5, 2, 4
DATA = torch.Generator().manual_seed(0)
X = torch.randn(STEPS, ACCUMULATE, RANKS, SIZE, 6, generator=DATA, dtype=torch.float64)
Y = torch.randint(3, (STEPS, ACCUMULATE, RANKS, SIZE), generator=DATA)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def rule(model):
    return LookSAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.1, k=3)


def main(folder):
    import accelerate

    from looksam.torch.accelerate import Backward

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    assert accelerator.num_processes == RANKS
    model = network()
    model, opt = accelerator.prepare(model, rule(model))
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    backward = Backward(accelerator, model, opt, lambda x, y: nn.functional.cross_entropy(model(x), y))
    rank, reduced = accelerator.process_index, []
    model.register_comm_hook(reduced, _count_and_average)
    for x, y in zip(X.flatten(0, 1)[:, rank], Y.flatten(0, 1)[:, rank], strict=True):
        with accelerator.accumulate(model):
            backward(x, y)
            opt.step()
            opt.zero_grad()
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.save((weights, len(reduced)), pathlib.Path(folder) / f"{rank}.pt")
    os._exit(0)  # tearing gloo down may abort


def _count_and_average(reduced, bucket):
    reduced.append(1)
    work = torch.distributed.all_reduce(bucket.buffer().div_(RANKS), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


if __name__ == "__main__":
    main(sys.argv[1])
