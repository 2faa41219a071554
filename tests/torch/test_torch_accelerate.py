"""Accelerate's loop with a rule, compared with loops written by hand."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest
import torch
import torch_accelerate_ranks as ranks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_loops import BATCH, CLIP, LR, Net, check_equal, check_hand_written, dataset, plain_loop, rule

accelerate = pytest.importorskip("accelerate")

from looksam.torch.accelerate import Backward  # noqa: E402


@pytest.fixture
def new_accelerator():
    """Returns a function that makes an accelerator; its states are shared by all of a process, so they are reset."""

    def make(**options):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()
        return accelerate.Accelerator(cpu=True, **options)

    yield make
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def loader_of(data):
    return DataLoader(TensorDataset(*data), batch_size=BATCH)


def prepared(accelerator, net, data, name="look_sam"):
    model, opt, loader = accelerator.prepare(net, rule(net, name), loader_of(data))
    backward = Backward(accelerator, model, opt, lambda x, y: nn.functional.cross_entropy(model(x), y))
    return model, opt, loader, backward


def train(accelerator, model, opt, loader, backward, clip=None):
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            losses.append(float(backward(x, y).detach()))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            opt.zero_grad()
    return losses


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("name", ["look_sam", "msam"])
def test_steps_of_several_batches(new_accelerator, name, accumulate, clip):
    net, data = Net().double(), dataset(5, accumulate)
    accelerator = new_accelerator(gradient_accumulation_steps=accumulate)
    train(accelerator, *prepared(accelerator, net, data, name), clip)
    check_hand_written(net, data[1], 5, accumulate, name, clip)


def test_dropout_masks_are_repeated_though_the_loader_draws_in_between(new_accelerator):
    net, (x, y) = Net().double(), dataset(4, 2)
    accelerator = new_accelerator(gradient_accumulation_steps=2)
    model, opt, _, backward = prepared(accelerator, net, (x, y))
    batches = ((torch.rand(3), *batch)[1:] for batch in zip(x.split(BATCH), y.split(BATCH), strict=True))
    train(accelerator, model, opt, batches, backward)
    check_hand_written(net, y, 4, 2)


def loss_in(dtype, net):
    def loss_of(x, y):
        with torch.autocast("cpu", dtype):
            logits = net(x)
        return nn.functional.cross_entropy(logits.float(), y)

    return loss_of


@pytest.mark.parametrize("accumulate", [1, 4])
def test_bfloat16(new_accelerator, accumulate):
    net, plain, data = Net(), Net(), dataset(5, accumulate, torch.float32)
    accelerator = new_accelerator(gradient_accumulation_steps=accumulate, mixed_precision="bf16")
    train(accelerator, *prepared(accelerator, net, data))
    plain.masks = [entry[2] for entry in net.seen]
    plain_loop(plain, data, accumulate, loss_in(torch.bfloat16, plain))
    check_equal(net, plain)


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_float16_with_overflow(new_accelerator, accumulate, clip):
    """Accelerate has no fp16 on a CPU, so its accelerator is told to; steps that overflow are skipped as in a loop."""
    net, plain, data = Net(), Net(), dataset(5, accumulate, torch.float32)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**20) for _ in range(2)]
    accelerator = new_accelerator(gradient_accumulation_steps=accumulate, mixed_precision="bf16")
    accelerator.state._mixed_precision, accelerator.scaler = "fp16", scalers[0]
    model, opt, loader, backward = prepared(accelerator, net, data)
    train(accelerator, model, opt, loader, backward, clip)
    plain.masks = [entry[2] for entry in net.seen]
    reference = plain_loop(plain, data, accumulate, loss_in(torch.float16, plain), scalers[1], clip)
    check_equal(net, plain)
    assert opt.optimizer.count == reference.count and 0 < reference.count < 5
    assert scalers[0].get_scale() == scalers[1].get_scale() < 2.0**20


def test_resumed_in_the_middle_of_a_cycle(new_accelerator, tmp_path):
    (x, y), nets = dataset(5, 2), [Net(dropout=0.0).double() for _ in range(3)]
    half = 4 * 2 * BATCH
    accelerator = new_accelerator(gradient_accumulation_steps=2)
    train(accelerator, *prepared(accelerator, nets[0], (x, y)))
    accelerator = new_accelerator(gradient_accumulation_steps=2)
    train(accelerator, *prepared(accelerator, nets[1], (x[:half], y[:half])))
    accelerator.save_state(tmp_path)
    accelerator = new_accelerator(gradient_accumulation_steps=2)
    parts = prepared(accelerator, nets[2], (x[half:], y[half:]))
    accelerator.load_state(tmp_path)
    train(accelerator, *parts)
    assert parts[1].optimizer.count == 5
    check_equal(nets[2], nets[0])


def test_what_it_returns(new_accelerator):
    """The value is that of the clean pass, also if there is more in it than the loss."""
    net, data, seen = Net().double(), dataset(2, 2), []
    accelerator = new_accelerator(gradient_accumulation_steps=2)
    model, opt, loader, _ = prepared(accelerator, net, data)

    def loss_of(x, y):
        logits = model(x)
        seen.append((nn.functional.cross_entropy(logits, y), logits))
        return seen[-1]

    returned = []
    backward = Backward(accelerator, model, opt, loss_of)
    for x, y in loader:
        with accelerator.accumulate(model):
            returned.append(backward(x, y))
            opt.step()
            opt.zero_grad()
    assert len(seen) == 6
    assert all(ours is seen[n] for ours, n in zip(returned, (0, 1, 4, 5), strict=True))
    logs = backward.logs()
    assert logs["looksam/refreshed"] == 0.5
    assert logs["looksam/grad_norm"] == float(opt.optimizer.info.grad_norm)
    assert backward.logs() == {}


def test_two_processes(tmp_path):
    """Each rank has half of every micro-batch: as one process with all of it, and one all-reduce per pass."""
    script = pathlib.Path(ranks.__file__)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    paths = os.pathsep.join([str(script.parents[2]), os.environ.get("PYTHONPATH", "")])
    processes = []
    for rank in map(str, range(ranks.RANKS)):
        group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(ranks.RANKS), "ACCELERATE_USE_CPU": "true"}
        environment = os.environ | address | group | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script), str(tmp_path)]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks.RANKS, errors
    (first, reduced), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks.RANKS))
    assert torch.equal(first, second)
    model = ranks.network()
    opt = ranks.rule(model)
    for x, y in zip(ranks.X.flatten(1, 3), ranks.Y.flatten(1, 3), strict=True):
        opt.step(lambda x=x, y=y: nn.functional.cross_entropy(model(x), y).backward())
    expected = nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(first, expected, rtol=1e-12, atol=1e-12)
    assert reduced == ranks.STEPS + 2  # steps 0 and 3 refresh


def test_a_closure_in_accumulate_is_refused(new_accelerator):
    """Accelerate leaves the calls for all micro-batches but the last out, so the others would never be trained on."""
    net, data = Net().double(), dataset(2, 4)
    before = nn.utils.parameters_to_vector(net.parameters()).clone()
    accelerator = new_accelerator(gradient_accumulation_steps=4)
    model, opt, loader, _ = prepared(accelerator, net, data)

    def train_by_closures():
        for x, y in loader:
            with accelerator.accumulate(model):

                def closure(x=x, y=y):
                    opt.zero_grad()
                    loss = nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    return loss

                opt.step(closure)

    with pytest.raises(RuntimeError, match="gradient_accumulation_steps=4.*looksam.torch.accelerate"):
        train_by_closures()
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), before)
    own = rule(Net().double())  # one that is not Accelerate's
    own.step(lambda: sum(p.sum() for group in own.param_groups for p in group["params"]).backward())
    assert own.count == 1


def test_a_plain_optimizer_is_refused(new_accelerator):
    accelerator, net = new_accelerator(), Net()
    model, opt = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=LR))
    with pytest.raises(TypeError, match=r"AcceleratedOptimizer, which is none of looksam.torch; wrap it"):
        Backward(accelerator, model, opt, lambda x: model(x).sum())
