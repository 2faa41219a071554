"""The recipes of docs/pytorch.md, run as printed there, compared with a plain loop over the same batches."""

import functools
import re

import numpy as np
import pytest
import recipes
import torch
from torch import nn
from torch_problems import flat, saved_rule

import looksam.torch
from looksam.torch import LookSAM, sam_family

PAGE = "pytorch.md"
recipe = functools.partial(recipes.blocks, PAGE)
DATA = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 6, generator=DATA), torch.randint(3, (48,), generator=DATA)
BATCHES = list(zip(X.split(8), Y.split(8), strict=True))  # six: the second cycle begins
PASSES = 8  # 2 + 1 + 1 + 1 + 1 + 2


class Net(nn.Module):
    """A network with dropout and batch normalisation, which records the batches and masks of its passes."""

    def __init__(self, masks=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.masks, self.seen = masks, []

    def forward(self, x, labels=None):
        mask = torch.rand(len(x), 8) > 0.2 if self.masks is None else self.masks[len(self.seen)]
        self.seen.append((x, labels, mask))
        logits = self.last(torch.relu(self.norm(self.first(x)) * mask))
        return logits if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def run(code, net, **names):
    """Executes a recipe, and returns the names it defined."""
    space = {
        "torch": torch,
        **{name: getattr(looksam.torch, name) for name in looksam.torch.__all__},
        "model": net,
        "criterion": nn.functional.cross_entropy,
        "loader": BATCHES,
        "device": "cpu",
        **names,
    }
    return recipes.run(code, PAGE, space)


def optimizer(net):
    return LookSAM(torch.optim.AdamW(net.parameters(), lr=1e-3), rho=0.1, k=5, model=net)


def check(net, schedule=False):
    """Checks where second passes come, that they use the same mask, and that a plain loop gives these weights."""
    assert len(net.seen) == PASSES
    clean = [entry for i, entry in enumerate(net.seen) if i not in (1, 7)]
    for i in (0, 6):
        for ours, second in zip(net.seen[i], net.seen[i + 1], strict=True):
            assert ours is second is None or torch.equal(ours, second)
    plain = Net(masks=[entry[2] for entry in net.seen])
    opt = optimizer(plain)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)
    for (x, own, _), (_, y) in zip(clean, BATCHES, strict=True):

        def closure(x=x, y=y if own is None else own):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(plain(x), y)
            loss.backward()
            return loss

        opt.step(closure)
        if schedule:
            scheduler.step()
    for ours, expected in zip(net.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)


def test_plain_loop():
    net = Net()
    space = run(recipe("A plain loop")[0], net)
    check(net, schedule=True)
    assert space["scheduler"].get_last_lr()[0] < 1e-3


def test_clipping():
    net = Net()
    opt = run(recipe("Clipping")[0], net)["opt"]
    norms = []
    opt.base.register_step_pre_hook(lambda *_: norms.append(np.linalg.norm(flat([p.grad for p in net.parameters()]))))
    loop = recipe("A plain loop")[0].split("\nfor ")[1].replace("scheduler.step()", "")
    run(f"for {loop}", net, opt=opt)
    assert len(norms) == len(BATCHES) and max(norms) <= 1.0


def test_without_a_closure():
    net = Net()
    run(recipe("Without a closure")[0], net, opt=optimizer(net))
    check(net)


def steps(net, opt):
    """Takes one step on each batch, and returns the number of gradients and whether one was taken at w + ε."""
    seen = []
    for x, y in BATCHES:

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            return loss

        before = len(net.seen)
        opt.step(closure)
        seen.append((len(net.seen) - before, opt.info.refreshed))
    return seen


def test_some_of_the_steps_and_parameters():
    net = Net()
    opt = run(recipe("Some of the steps, some of the parameters")[0], net)["opt"]
    assert steps(net, opt) == [(1, False)] * 4 + [(2, True), (1, False)]
    selected = opt._passes.groups.named("perturb", list(net.parameters()))
    assert dict(zip((name for name, _ in net.named_parameters()), selected, strict=True)) == {
        name: name in ("first.weight", "last.weight") for name, _ in net.named_parameters()
    }


def test_msam_without_a_closure():
    net = Net()
    run(recipe("MSAM")[0], net)
    assert len(net.seen) == len(BATCHES)
    plain = Net(masks=[entry[2] for entry in net.seen])
    opt = looksam.torch.MSAM(torch.optim.AdamW(plain.parameters(), lr=1e-3), rho=0.3, model=plain)
    assert steps(plain, opt) == [(1, True)] * len(BATCHES)
    for ours, expected in zip(net.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_rules_of_your_own():
    net = Net()
    opt = run(recipe("Rules of your own")[0], net)["opt"]
    assert steps(net, opt) == [(2, True)] + [(1, False)] * 4 + [(2, True)]
    assert opt.param_groups[0]["gsam_alpha"] == 0.2 and opt.param_groups[0]["alpha"] == 0.7


def test_every_rule_is_listed():
    (table,) = re.findall(r"^## The rules\n(.*?)(?=^## )", recipes.text(PAGE), re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\| `(\w+)\(", table, re.MULTILINE) == [rule.__name__ for rule in sam_family.RULES.values()]


def test_fp16_scaler():
    net = Net()
    space = run(recipe("Mixed precision")[0], net, opt=optimizer(net))
    passes, count = len(net.seen), saved_rule(space["opt"])["count"]
    skipped = len(BATCHES) - count
    assert passes == skipped + count + len(range(0, count, 5))
    assert space["scaler"].get_scale() == 65536.0 / 2**skipped


def test_many_devices():
    """In a group of one process, its own gradient is the mean."""
    group = torch.distributed
    group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)
    try:
        net = Net()
        names = run(recipe("Many devices")[0], net, DistributedDataParallel=nn.parallel.DistributedDataParallel)
        for x, y in BATCHES:

            def closure(x=x, y=y):
                names["opt"].zero_grad()
                loss = nn.functional.cross_entropy(names["model"](x), y)
                loss.backward()
                return loss

            names["opt"].step(closure)
        check(net)
    finally:
        group.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers which may be a bottleneck")
@pytest.mark.filterwarnings("ignore:.*The number of training batches \\(6\\) is smaller than the logging interval")
def test_lightning():
    lightning = pytest.importorskip("lightning")
    net = Net()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    code = recipe("Lightning")[0].replace(
        "Trainer(", f"Trainer(accelerator='cpu', {', '.join(f'{x}=False' for x in quiet)}, "
    )
    run(code, net, lightning=lightning, loader=loader)
    check(net)


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    net, data = Net(), torch.utils.data.TensorDataset(X, Y)
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    accelerator = accelerate.Accelerator(cpu=True)
    code = recipe("Accelerate")[0].replace(
        "model.parameters(), 1.0", "model.parameters(), 1e9"
    )  # not clipped, as in check
    run(code, net, opt=optimizer(net), loader=loader, accelerator=accelerator)
    check(net)


def test_hugging_face_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=len(BATCHES),
        per_device_train_batch_size=8,
        max_grad_norm=0,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    net, dataset = Net(), [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    run(recipe("Hugging Face Trainer")[0], net, arguments=arguments, dataset=dataset)
    check(net)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints(tmp_path):
    """The blocks save and load the state of the optimizer in mid-cycle."""
    save, load = recipe("Checkpoints")
    models = [nn.Linear(6, 3) for _ in range(2)]
    opts = [optimizer(model) for model in models]

    def train(which):
        for x, y in BATCHES[:2]:
            opts[which].zero_grad()
            opts[which].step(lambda: nn.functional.cross_entropy(models[which](x), y).backward())  # noqa: B023

    train(0)
    names = run(save, models[0], opt=opts[0], folder=tmp_path)
    models[1].load_state_dict(models[0].state_dict())
    exec(load, {**names, "opt": opts[1], "model": models[1]})
    train(0)
    train(1)
    assert opts[1].count == 4 and not opts[1].info.refreshed
    np.testing.assert_array_equal(*(flat(model.parameters()) for model in models))
