"""How much memory a rule takes in PyTorch: the peak of a training run, in copies of the parameters.

    python benchmarks/torch_memory.py                    # to results/benchmarks/torch_memory.json
    python benchmarks/torch_memory.py --json build/torch_memory.json

Every allocation of PyTorch on the CPU is counted, by the memory events of its profiler, from before the model is built;
the resident set of the process does not enter. The model is an MLP of 16 equal layers with 17M parameters, on two rows
of input, so that activations and temporaries of single layers count for little. Parameters, gradients and the state of
the base optimizer are three copies with SGD and momentum, and four with AdamW. About a minute on one CPU core.
"""

import argparse
import contextlib
import importlib.metadata
import json
import pathlib
import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from looksam.torch import ASAM, GSAM, MSAM, SAM, LayerSAM, LookSAM

RESULTS = pathlib.Path(__file__).parent.parent / "results/benchmarks/torch_memory.json"
LAYERS, WIDTH, STEPS, K = 16, 1024, 7, 3  # three refreshes, the last with everything allocated
OPTIMIZERS = {
    "sgdm": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-4}),
}
OURS = {
    "SAM": lambda base: SAM(base, 0.05),
    "SAM, p = 3": lambda base: SAM(base, 0.05, p=3.0),
    "LookSAM": lambda base: LookSAM(base, 0.05, k=K),
    "LookSAM, g_v in bfloat16": lambda base: LookSAM(base, 0.05, k=K, store_dtype=torch.bfloat16),
    "LookSAM, p = 3": lambda base: LookSAM(base, 0.05, k=K, p=3.0),
    "LayerSAM": lambda base: LayerSAM(base, 0.05),
    "ASAM": lambda base: ASAM(base, 0.5),
    "GSAM": lambda base: GSAM(base, 0.05, 0.2),
    "MSAM": lambda base: MSAM(base, 0.3),
}


def closure_for(model, x):
    def closure():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return closure


def ours(rule, kind, options):
    """Returns a function that builds the steps of one of our rules; without a rule, of the base optimizer."""

    def build(model, closure):
        base = kind(model.parameters(), **options)
        opt = base if rule is None else rule(base)
        return lambda: opt.step(closure)

    return build


def peer(name, kind, options):
    """Returns a function that builds the steps of pytorch_optimizer's rule, in the loop of its documentation."""
    import pytorch_optimizer  # compared with, never needed

    def build(model, closure):
        own = {"k": K} if name == "LookSAM" else {}
        opt = getattr(pytorch_optimizer, name)(model.parameters(), kind, rho=0.05, **own, **options)
        return lambda: (closure(), opt.step(closure))

    return build


def peak(build):
    """Returns the largest number of bytes that were allocated at a time, over the bytes of the parameters."""
    with contextlib.redirect_stderr(None), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        step = build(model, closure_for(model, torch.randn(2, WIDTH)))
        for _ in range(STEPS):
            step()
    events = profiler.profiler.kineto_results.events()
    allocated = largest = 0
    for _, size in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        allocated += size
        largest = max(largest, allocated)
    return largest / sum(p.nbytes for p in model.parameters())


def measure():
    rows = []
    for optimizer, settings in OPTIMIZERS.items():
        base = peak(ours(None, *settings))
        builders = {("looksam.torch", name): ours(rule, *settings) for name, rule in OURS.items()}
        builders |= {("pytorch_optimizer", name): peer(name, *settings) for name in ("SAM", "LookSAM")}
        rows.append({"optimizer": optimizer, "library": "PyTorch", "method": "base", "copies": base, "extra": 0.0})
        for (library, method), build in builders.items():
            copies = peak(build)
            row = {"optimizer": optimizer, "library": library, "method": method}
            rows.append(row | {"copies": copies, "extra": copies - base})
            print(f"{optimizer:6} {library:18} {method:26} {copies:5.2f}  base {copies - base:+.2f}", flush=True)
    versions = {name: importlib.metadata.version(name).split("+")[0] for name in ("torch", "pytorch_optimizer")}
    return {"versions": versions, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS, help="the file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure()
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
