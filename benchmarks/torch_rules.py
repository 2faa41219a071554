"""The cost of the rules in PyTorch: relative step time compared with the base optimizer and with another library.

    python benchmarks/torch_rules.py --json results/benchmarks/torch_rules.json   # everything, about 45 minutes
    python benchmarks/torch_rules.py --models mlp --rounds 40

All methods take their steps in turn, in rounds of ten steps each, so that a machine that slows down slows all of them.
A ratio is taken within each round, to the mean of three base optimizers: the noise of a single one would be in every
ratio. Printed are the median over rounds and the middle half. Each method has a process of its own, as it has in
use: whether a large gradient finds memory that was freed before, or must ask the operating system for new pages, is
much of the MLP's time. Several sets of processes average that out. Each process has one thread, so that CPU time does
not include threads that wait.
"""

import argparse
import json
import multiprocessing
import pathlib
import random
import statistics
import time

import pytorch_optimizer
import torch
import torch_models
from torch.nn import functional

from looksam.torch import SAM, LayerSAM, LookLayerSAM, LookSAM, SAMk

CYCLE = 10  # a multiple of every k below
BASES = 3
MODELS = {"vit": torch_models.vit, "resnet": torch_models.resnet, "mlp": torch_models.mlp}
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-4}),
    "sgdm": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
}


def ours(rule, **settings):
    def make(model, kind, options):
        opt = rule(kind(model.parameters(), **options), rho=0.05, model=model, **settings)
        return opt, opt.step

    return make


def base(model, kind, options):
    opt = kind(model.parameters(), **options)
    return opt, opt.step


def peer(rule, **settings):
    """Returns the loop of its documentation: a first pass by hand, then step(closure) with another."""

    def make(model, kind, options):
        opt = rule(model.parameters(), kind, rho=0.05, **settings, **options)

        def step(closure):
            closure()
            opt.step(closure)

        return opt, step

    return make


def peer_one_pass(model, kind, options):
    """Its LookSAM in a loop of our own, without the second passes that it does not use."""
    opt = pytorch_optimizer.LookSAM(model.parameters(), kind, rho=0.05, k=5, **options)
    count = 0

    def step(closure):
        nonlocal count
        closure()
        if count % 5 == 0:
            opt.step(closure)
        else:
            opt.second_step()
        count += 1

    return opt, step


METHODS = {
    "base": base,
    "SAM": ours(SAM),
    "SAMk k=5": ours(SAMk, k=5),
    "LookSAM k=5": ours(LookSAM, k=5),
    "LookSAM k=5 bf16": ours(LookSAM, k=5, store_dtype=torch.bfloat16),
    "LookSAM k=10": ours(LookSAM, k=10),
    "LayerSAM": ours(LayerSAM),
    "LookLayerSAM k=5": ours(LookLayerSAM, k=5),
    "pytorch_optimizer SAM": peer(pytorch_optimizer.SAM),
    "pytorch_optimizer LookSAM k=5": peer(pytorch_optimizer.LookSAM, k=5),
    "the same, second pass left out": peer_one_pass,
}


class Runner:
    """One method on one model, with its optimizer and the number of passes so far."""

    def __init__(self, model_name, optimizer, make):
        self.model, self.batch = MODELS[model_name]()
        self.opt, self.step = make(self.model, *OPTIMIZERS[optimizer])
        self.passes = self.steps = 0

    def closure(self):
        self.opt.zero_grad()
        x, y = self.batch
        loss = functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.passes += 1
        return loss

    def warm_up(self):
        for _ in range(CYCLE // 2):
            self.run()
        self.passes = self.steps = 0

    def run(self):
        """Takes one step, and returns wall and CPU seconds."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.step(self.closure)
        self.steps += 1
        return time.perf_counter() - wall, time.process_time() - cpu


def _serve(pipe, model_name, optimizer, method, threads):
    """Runs in a process: takes a step on each request, and at the end sends the number of gradients per step."""
    torch.set_num_threads(threads)
    runner = Runner(model_name, optimizer, METHODS[method])
    runner.warm_up()
    pipe.send("ready")
    while pipe.recv() == "step":
        pipe.send(runner.run())
    pipe.send(runner.passes / runner.steps)


def _start(*arguments):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=_serve, args=(theirs, *arguments), daemon=True).start()
    theirs.close()  # or the run would wait forever for a process that died
    return ours


def _ask(pipe, message):
    pipe.send(message)
    return pipe.recv()


def measure(model_name, optimizer, methods, rounds, sets, threads):
    """Returns the rows of the table, from rounds of several sets of processes, one set after the other."""
    results = [_rounds(model_name, optimizer, methods, rounds, threads) for _ in range(sets)]
    times = {name: [t for result in results for t in result[name][0]] for name in methods}
    return [_row(name, model_name, optimizer, results[0][name][1], times) for name in methods]


def _rounds(model_name, optimizer, methods, rounds, threads):
    """Returns, for each method, wall and CPU seconds per step in every round, and gradients per step."""
    names = methods + ["base"] * (BASES - 1)
    workers = [(name, _start(model_name, optimizer, name, threads)) for name in names]
    for _, pipe in workers:
        pipe.recv()  # ready
    times = {name: [] for name in methods}
    for _ in range(rounds):
        steps = {name: [] for name in methods}
        for _ in range(CYCLE):
            for name, pipe in random.sample(workers, len(workers)):
                steps[name].append(_ask(pipe, "step"))
        for name in methods:
            times[name].append([statistics.mean(seconds) for seconds in zip(*steps[name], strict=True)])
    return {name: (times[name], _ask(pipe, "end")) for name, pipe in workers}


def _row(name, model_name, optimizer, gradients, times):
    ratios = [[a / b for a, b in zip(t, u, strict=True)] for t, u in zip(times[name], times["base"], strict=True)]
    wall, cpu = zip(*ratios, strict=True)
    return {
        "model": model_name,
        "optimizer": optimizer,
        "method": name,
        "gradients": gradients,
        "wall": statistics.quantiles(wall, n=4, method="inclusive"),
        "cpu": statistics.quantiles(cpu, n=4, method="inclusive"),
        "base_ms": 1e3 * statistics.median(t[0] for t in times["base"]),
    }


def _print(rows):
    head = rows[0]
    print(f"\n{head['model']}, {head['optimizer']}, base step {head['base_ms']:.1f} ms")
    print(f"{'method':32}{'gradients':>10}{'wall':>7}  (middle half){'cpu':>7}  (middle half)")
    for row in rows:
        (a, wall, b), (c, cpu, d) = row["wall"], row["cpu"]
        print(
            f"{row['method']:32}{row['gradients']:10.2f}{wall:7.3f}  ({a:.3f}-{b:.3f}){cpu:7.3f}  ({c:.3f}-{d:.3f})",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=3, help="rounds per set of processes")
    parser.add_argument("--sets", type=int, default=5, help="sets of processes, each with one process per method")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    methods = list(dict.fromkeys(["base", *arguments.methods]))
    rows = []
    for model in arguments.models:
        for optimizer in arguments.optimizers:
            rows += measure(model, optimizer, methods, arguments.rounds, arguments.sets, arguments.threads)
            _print(rows[-len(methods) :])
            if arguments.json:  # after each pair, as the whole run takes long
                pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
