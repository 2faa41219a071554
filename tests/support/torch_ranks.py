"""Training on two processes, for test_torch_ranks.py: python torch_ranks.py RANK FOLDER.

All results are written to FOLDER before the process group is torn down, which can abort at exit.
"""

import copy
import io
import math
import pathlib
import re
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch_problems import RULES, TWO_GRADIENT_RULES, build

from looksam.torch import LookSAM, passes

passes.SMALL_GRADIENT = 0  # or gradients as small as these would be copied anyway, whether views or not

RANKS, STEPS = 2, 5
DATA = torch.Generator().manual_seed(0)
X = torch.randn(12, 5, generator=DATA, dtype=torch.float64)
Y = torch.randn(12, 1, generator=DATA, dtype=torch.float64)
FSDP_OPTIONS = {  # name: (rule, options); with ``layers``, a layer has two tensors
    **{name: (name, {}) for name in RULES},
    "p=3": ("look_sam", {"p": 3.0}),
    "p=inf": ("look_layer_sam", {"p": math.inf}),
    "adaptive, p=3": ("look_layer_sam", {"p": 3.0, "scaling": "adaptive"}),
    "bfloat16": ("look_sam", {"store_dtype": torch.bfloat16}),
    "layers": ("look_layer_sam", {"layers": lambda name: name.split(".")[0]}),
    "asam, p=3": ("asam", {"p": 3.0, "scale": lambda name: "weight" in name}),
    "perturb": ("look_sam", {"perturb": lambda name: "weight" in name, "start": 1}),
    "msam, perturb": ("msam", {"perturb": lambda name: "weight" in name}),
    "base momentum": ("msam", {"use_base_momentum": True}),
}


def network(width=7):
    """Returns a network with seven rows and a bias of one entry: neither can be split evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 1)).double()


def base_for(model):
    return torch.optim.SGD(list(model.named_parameters()), lr=0.1, momentum=0.9)


def closure_for(model, opt, x, y, change=None):
    calls = []

    def closure():
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        calls.append(1)
        if change:
            change(model, len(calls))
        return loss

    return closure


def weights(model):
    """Returns the whole tensors, wherever their shards are."""
    tensors = [p.detach() for p in model.parameters()]
    return [(x.full_tensor() if hasattr(x, "full_tensor") else x).clone() for x in tensors]


def train(model, opt, x, y, steps=STEPS, change=None):
    seen = []
    for _ in range(steps):
        opt.step(closure_for(model, opt, x, y, change))
        seen.append((weights(model), opt.info.grad_norm))
    return seen


class Counter:
    """Counts the calls of all_reduce by the rules."""

    def __enter__(self):
        self.sizes, self.plain = [], dist.all_reduce
        dist.all_reduce = lambda tensor, *args, **kwargs: (
            self.sizes.append(tensor.numel()),
            self.plain(tensor, *args, **kwargs),
        )[1]
        return self

    def __exit__(self, *_):
        dist.all_reduce = self.plain


def data_parallel(name, x, y, per_rank=False, bucket_views=False, change=None, steps=STEPS):
    model = DistributedDataParallel(network(), gradient_as_bucket_view=bucket_views)
    buckets = []

    def count(_, bucket):
        buckets.append(bucket.buffer().numel())
        return dist.all_reduce(bucket.buffer().div_(RANKS), async_op=True).get_future().then(lambda f: f.value()[0])

    model.register_comm_hook(None, count)
    opt = build(name, base_for(model), model=model, per_rank=per_rank)
    per_step = []
    seen = []
    for _ in range(steps):
        seen += train(model, opt, x, y, steps=1, change=change)
        per_step.append(len(buckets))
        buckets.clear()
    return {"steps": seen, "buckets": per_step, "fell_back": bool(opt.info.fell_back)}


def fsdp(mesh=None):
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def replicas_of_shards():
    """Returns a model under HSDP, each shard on one rank: sums must not count the replicas."""
    return fsdp(init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("replicate", "shard")))


def tensor_parallel():
    """Returns a model with parameters sharded by rows and by columns, and a bias on both ranks."""
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(network(width=8), init_device_mesh("cpu", (RANKS,)), plan)


def scaled(x, y):
    """Trains with a gradient scaler on shards; the third step overflows on one rank and is skipped on both."""
    model = fsdp()
    opt, scaler = build("look_sam", base_for(model)), torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = []
    for step in range(STEPS + 1):

        def closure(step=step):
            opt.zero_grad()
            scaler.scale(((model(x) - y) ** 2).mean()).backward()
            if step == 2 and dist.get_rank() == 0:
                next(model.parameters()).grad.to_local()[0, 0] = torch.inf

        opt.step(closure, scaler=scaler)
        scaler.update()
        seen.append((weights(model), None))
    return {"steps": seen, "scale": scaler.get_scale()}


def sharded(model, rule, options, x, y):
    opt = build(rule, base_for(model), **options)
    with Counter() as reductions:
        first = train(model, opt, x, y, steps=1)
        refresh = len(reductions.sizes)
        first += train(model, opt, x, y, steps=1)
        reuse = len(reductions.sizes) - refresh
    file = io.BytesIO()  # one for each rank
    torch.save(opt.state_dict(), file)
    file.seek(0)
    at = [p.detach().clone() for p in model.parameters()]
    straight = train(model, opt, x, y, steps=STEPS - 2)
    with torch.no_grad():  # back to the second step, in the middle of a cycle
        for p, w in zip(model.parameters(), at, strict=True):
            p.copy_(w)
    again = build(rule, base_for(model), **options)
    again.load_state_dict(torch.load(file, weights_only=True))
    return {
        "steps": first + straight,
        "resumed": first + train(model, again, x, y, steps=STEPS - 2),
        "reductions": (refresh, reuse),
    }


def replicated():
    return DistributedDataParallel(network())


CHECKPOINT_MODELS = {
    "ddp": replicated,
    "fsdp": fsdp,
    "replicas": replicas_of_shards,
    "tensor parallel": tensor_parallel,
}
CHECKPOINT_BASES = {"sgdm": base_for, "sgd": lambda model: torch.optim.SGD(list(model.named_parameters()), lr=0.1)}


def distributed_checkpoint(make, base, rule, options, x, y, folder):
    """Resumes in mid-cycle from torch.distributed.checkpoint: shards in files, and whole tensors from one rank."""
    model = make()
    opt = build(rule, base(model), **options)
    train(model, opt, x, y, steps=2)
    opt.zero_grad()  # with gradients left over, torch would take no step to create the state
    at = [p.detach().clone() for p in model.parameters()]
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)  # on rank 0 only
    full = copy.deepcopy(get_optimizer_state_dict(model, opt, options=whole))
    dcp.save({"optimizer": get_optimizer_state_dict(model, opt)}, checkpoint_id=folder)
    results = {"straight": train(model, opt, x, y, steps=STEPS - 2)}

    def resumed(load):
        with torch.no_grad():
            for p, w in zip(model.parameters(), at, strict=True):
                p.copy_(w)
        model.zero_grad()
        again = build(rule, base(model), **options)
        load(again)
        return train(model, again, x, y, steps=STEPS - 2)

    def load_shards(again):
        state = {"optimizer": get_optimizer_state_dict(model, again)}
        dcp.load(state, checkpoint_id=folder)
        set_optimizer_state_dict(model, again, state["optimizer"])

    results["shards"] = resumed(load_shards)
    if opt.state or rule != "sam":  # torch refuses a state without tensors
        from_one_rank = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        results["whole"] = resumed(lambda again: set_optimizer_state_dict(model, again, full, options=from_one_rank))
    return results


def whole_tensors_into_shards(x, y):
    """Returns the error of a state dict of plain tensors for a sharded model."""
    model, plain = fsdp(), network()
    opts = [build("look_sam", base_for(m)) for m in (model, plain)]
    for m, opt in zip((model, plain), opts, strict=True):
        train(m, opt, x, y, steps=1)
    try:
        opts[0].load_state_dict(opts[1].state_dict())
    except ValueError as error:
        return str(error)


CHECKPOINTS = [  # model, base optimizer, and a name in FSDP_OPTIONS
    *(("fsdp", base, name) for base in CHECKPOINT_BASES for name in ("sam", "look_sam", "msam")),
    *(("fsdp", "sgdm", name) for name in ("bfloat16", "msam, perturb", "base momentum")),
    *((where, "sgdm", name) for where in CHECKPOINT_MODELS if where != "fsdp" for name in ("look_sam", "msam")),
]


def blow_up_first(rank):
    """Makes the squares of rank 1's own gradient overflow; its second gradient is fine."""

    def change(model, call):
        if call == 1 and rank == 1:
            next(model.parameters()).grad[0, 0] = 1e200

    return change


def documented(x, y):
    """Runs the recipe of docs/pytorch.md, as printed there."""
    text = (pathlib.Path(__file__).parents[2] / "docs/pytorch.md").read_text()
    (code,) = re.findall(r"^```python\n(model = DistributedDataParallel.*?)^```", text, re.MULTILINE | re.DOTALL)
    space = {"torch": torch, "LookSAM": LookSAM, "DistributedDataParallel": DistributedDataParallel, "model": network()}
    exec(compile(code, "docs/pytorch.md", "exec"), space)
    return train(space["model"], space["opt"], x, y)


def main(rank, folder):
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    x, y = X.chunk(RANKS)[rank], Y.chunk(RANKS)[rank]
    results = {}
    for name in RULES:
        results["ddp", name] = data_parallel(name, x, y)
        results["views", name] = data_parallel(name, x, y, bucket_views=True)
    for name in TWO_GRADIENT_RULES:
        results["rank", name] = data_parallel(name, x, y, per_rank=True)
        results["rank, views", name] = data_parallel(name, x, y, per_rank=True, bucket_views=True)
        results["overflow", name] = data_parallel(name, x, y, per_rank=True, change=blow_up_first(rank), steps=1)
    for name, (rule, options) in FSDP_OPTIONS.items():
        results["fsdp", name] = sharded(fsdp(), rule, options, x, y)
    for name in RULES:
        results["replicas", name] = sharded(replicas_of_shards(), name, {}, x, y)
        results["tensor parallel", name] = sharded(tensor_parallel(), name, {}, X, Y)
    for i, key in enumerate(CHECKPOINTS):
        where, base, name = key
        rule, options = FSDP_OPTIONS[name]
        batch = (X, Y) if where == "tensor parallel" else (x, y)
        make = CHECKPOINT_MODELS[where]
        results["checkpoint", key] = distributed_checkpoint(
            make, CHECKPOINT_BASES[base], rule, options, *batch, f"{folder}/checkpoint{i}"
        )
    results["whole into shards"] = whole_tensors_into_shards(x, y)
    results["scaled"] = scaled(x, y)
    results["recipe"] = documented(x, y)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
