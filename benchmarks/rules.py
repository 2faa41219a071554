"""What a rule costs: time per step as a ratio to the base optimizer, and memory.

    python benchmarks/rules.py --json results/benchmarks/rules.json   # everything, about ten minutes on two CPU cores
    python benchmarks/rules.py --models mlp --rounds 40

All methods take their steps in turn within one run, a cycle of ten steps per round, so that a machine that slows down
slows all of them. A ratio is taken within each round; the median over rounds and the middle half are printed.
"""

import argparse
import functools
import json
import pathlib
import random
import statistics
import time

import jax
import models
import numpy as np
import optax

import looksam

CYCLE = 10  # a multiple of every k below
MODELS = {"vit": models.vit, "resnet": models.resnet, "mlp": models.mlp}
OPTIMIZERS = {"adamw": lambda: optax.adamw(1e-4), "sgdm": lambda: optax.sgd(1e-3, momentum=0.9)}
METHODS = {  # name: (rule, form); the limit is the number of gradients per step
    "base": (None, "static"),
    "sam": (lambda: looksam.sam(0.05), "static"),
    "look_sam k=5": (lambda: looksam.look_sam(0.05, 0.7, k=5), "static"),
    "look_sam k=5 bf16": (lambda: looksam.look_sam(0.05, 0.7, k=5, store_dtype=jax.numpy.bfloat16), "static"),
    "look_sam k=10": (lambda: looksam.look_sam(0.05, 0.7, k=10), "static"),
    "look_sam k=5 traced": (lambda: looksam.look_sam(0.05, 0.7, k=5), "traced"),
    "look_sam k=10 traced": (lambda: looksam.look_sam(0.05, 0.7, k=10), "traced"),
    "sam_k k=5": (lambda: looksam.sam_k(0.05, k=5), "static"),
    "layer_sam": (lambda: looksam.layer_sam(0.05), "static"),
    "look_layer_sam k=5": (lambda: looksam.look_layer_sam(0.05, 0.7, k=5), "static"),
}


class Runner:
    """One method on one model: its carry, its compiled programs and its clock."""

    def __init__(self, model, tx, rule, form):
        params, loss, self.batch = model
        self.rule, self.form, self.count = rule, form, 0
        value_and_grad = jax.value_and_grad(loss)

        @functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
        def step(carry, refresh, *batch):
            params, state, opt_state = carry
            if rule is None:
                value, grads = value_and_grad(params, *batch)
            else:
                value, grads, state, _ = rule.gradient(value_and_grad, params, state, *batch, refresh=refresh)
            updates, opt_state = tx.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), state, opt_state), value

        params = jax.tree.map(lambda x: x + 0, params)  # a copy of its own, to donate
        self.carry = (params, rule.init(params) if rule else (), tx.init(params))
        refreshes = {None} if rule is None or form == "traced" else {rule.refreshes(i) for i in range(CYCLE)}
        self.programs = {refresh: step.lower(self.carry, refresh, *self.batch).compile() for refresh in refreshes}

    def run(self):
        """One step; wall and CPU seconds."""
        refresh = None if None in self.programs else self.rule.refreshes(self.count)
        wall, cpu = time.perf_counter(), time.process_time()
        self.carry, value = self.programs[refresh](self.carry, *self.batch)
        jax.block_until_ready((self.carry, value))
        self.count += 1
        return np.array([time.perf_counter() - wall, time.process_time() - cpu])

    def gradients_per_step(self):
        return 1.0 if self.rule is None else 1 + sum(self.rule.refreshes(i) for i in range(CYCLE)) / CYCLE

    def memory(self):
        """Bytes carried for the rule, and XLA's own account of its largest program, in copies of the parameters."""
        size = sum(x.nbytes for x in jax.tree.leaves(self.carry[0]))
        kept = sum(x.nbytes for x in jax.tree.leaves(self.carry[1]))
        temporary = max(program.memory_analysis().temp_size_in_bytes for program in self.programs.values())
        return kept / size, temporary / size


def measure(model_name, optimizer_name, methods, rounds):
    model = MODELS[model_name]()
    runners = {name: Runner(model, OPTIMIZERS[optimizer_name](), *_built(METHODS[name])) for name in methods}
    for _ in range(CYCLE):  # compile and warm up
        for runner in runners.values():
            runner.run()
    times = {name: [] for name in methods}
    order = list(methods)
    for _ in range(rounds):
        totals = dict.fromkeys(methods, 0.0)
        for _ in range(CYCLE):
            random.shuffle(order)
            for name in order:
                totals[name] = totals[name] + runners[name].run()
        for name in methods:
            times[name].append(totals[name] / CYCLE)
    rows = []
    for name in methods:
        wall, cpu = zip(*(t / b for t, b in zip(times[name], times["base"], strict=True)), strict=True)
        kept, temporary = runners[name].memory()
        rows.append(
            {
                "model": model_name,
                "optimizer": optimizer_name,
                "method": name,
                "gradients": runners[name].gradients_per_step(),
                "wall": _quartiles(wall),
                "cpu": _quartiles(cpu),
                "base_ms": 1e3 * statistics.median(t[0] for t in times["base"]),
                "kept_copies": kept,
                "temporary_copies": temporary,
            }
        )
    return rows


def _built(entry):
    factory, form = entry
    return (factory() if factory else None), form


def _quartiles(values):
    return [float(q) for q in np.quantile(values, [0.25, 0.5, 0.75])]


def _print(rows):
    head = rows[0]
    print(f"\n{head['model']}, {head['optimizer']}, base step {head['base_ms']:.1f} ms")
    print(f"{'method':22}{'gradients':>10}{'wall':>7}  (middle half){'cpu':>7}  (middle half){'kept':>7}{'temp':>7}")
    for row in rows:
        (a, wall, b), (c, cpu, d) = row["wall"], row["cpu"]
        print(
            f"{row['method']:22}{row['gradients']:10.2f}{wall:7.3f}  ({a:.3f}-{b:.3f}){cpu:7.3f}  ({c:.3f}-{d:.3f})"
            f"{row['kept_copies']:7.2f}{row['temporary_copies']:7.2f}",
            flush=True,
        )


def markdown(rows):
    """The table of docs/maths.md: median CPU-time ratios, one column a model and optimizer."""
    cells = {(row["method"], f"{row['model']}, {row['optimizer']}"): row for row in rows}
    methods, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    lines = [f"| method | gradients | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for method in methods:
        gradients = cells[method, columns[0]]["gradients"]
        ratios = " | ".join(f"{cells[method, column]['cpu'][1]:.2f}" for column in columns)
        lines.append(f"| {method} | {gradients:.1f} | {ratios} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="also write the rows to this file and print them as a table")
    arguments = parser.parse_args()
    methods = list(dict.fromkeys(["base", *arguments.methods]))
    rows = []
    for model in arguments.models:
        for optimizer in arguments.optimizers:
            rows += measure(model, optimizer, methods, arguments.rounds)
            _print(rows[-len(methods) :])
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
        print("\n" + markdown(rows))


if __name__ == "__main__":
    main()
