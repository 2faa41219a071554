"""What the trainer adds to a step, and what LookSAM costs inside it, on CIFAR-100.

    python benchmarks/trainer.py --data-dir DATA/cifar100 --json results/benchmarks/trainer.json

Two loops over the same compiled step take turns, a cycle of ten steps at a time: the bare one feeds it the same batch,
already on the device, again and again; the trainer's draws its own batches and fetches and writes its metrics. One
ratio is therefore the cost of input and logging, and the other that of LookSAM-5 compared with the base recipe, both
in the trainer. Ratios are taken within each round; the median and the middle half are printed. About five minutes on
two CPU cores.
"""

import argparse
import json
import pathlib
import tempfile
import time

import jax
import numpy as np

from looksam.trainer import recipes
from looksam.trainer.metrics import MetricsLog
from looksam.trainer.progress import Progress
from looksam.trainer.training import Training

CYCLE = 10
RECIPES = ("cifar100-small-vit", "cifar100-small-resnet")


class Runner:
    def __init__(self, recipe, folder):
        self.training = Training(recipe)
        self.state, self.count = self.training.init(), 0
        self.arguments = jax.device_put(self.training.batches.arguments(0))
        self.log = MetricsLog(folder)
        self.progress = Progress(10**6, images_per_step=recipe.batch_size, quiet=True)

    def bare(self):
        """The compiled step alone, on one batch that is on the device already."""
        for _ in range(CYCLE):
            programs = self.training.programs
            self.state, _ = programs.step(self.state, programs.refreshes(self.count), *self.arguments)
            self.count += 1

    def loop(self):
        """The trainer's step: its own batches, metrics fetched and written once per cycle."""
        for _ in range(CYCLE):
            self.count += 1
            self.state, metrics = self.training.step(self.state, self.count - 1, log=self.count % CYCLE == 0)
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.log.write(self.count, "train", values)
        self.progress.update(self.count, loss=values["loss"])

    def input_seconds(self):
        """The time that a step waits for its batch: the next indices, drawn and put on the device."""
        started = time.perf_counter()
        for i in range(100):
            jax.block_until_ready(jax.device_put(self.training.batches.arguments(i)))
        return (time.perf_counter() - started) / 100

    def seconds(self, part):
        started = time.perf_counter()
        part()
        jax.block_until_ready(self.state)
        return (time.perf_counter() - started) / CYCLE


def measure(name, data_dir, rounds, batch):
    recipe = recipes.find(name).recipe.replace(data_dir=data_dir, train_limit=2000, batch_size=batch)
    with tempfile.TemporaryDirectory() as folder:
        base = Runner(recipe.replace(method="base"), pathlib.Path(folder))
        look = Runner(recipe.replace(method="look_sam", k=5), pathlib.Path(folder))
        parts = {"bare": base.bare, "trainer": base.loop, "look_sam k=5": look.loop}
        owners = {"bare": base, "trainer": base, "look_sam k=5": look}
        for part in parts:
            owners[part].seconds(parts[part])  # compile
        waiting = base.input_seconds()
        times = [{part: owners[part].seconds(parts[part]) for part in parts} for _ in range(rounds)]

    def ratio(a, b):
        return [float(q) for q in np.quantile([t[a] / t[b] for t in times], [0.25, 0.5, 0.75])]

    return {
        "recipe": name,
        "batch": batch,
        "bare_seconds": float(np.median([t["bare"] for t in times])),
        "input_share": waiting / float(np.median([t["bare"] for t in times])),
        "images_per_second_to_bare": ratio("bare", "trainer"),
        "look_sam_5_to_base": ratio("look_sam k=5", "trainer"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="a folder with CIFAR-100")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    rows = []
    for name in RECIPES:
        row = measure(name, arguments.data_dir, arguments.rounds, arguments.batch)
        rows.append(row)
        (a, speed, b), (c, cost, d) = row["images_per_second_to_bare"], row["look_sam_5_to_base"]
        print(f"{name}, batch {row['batch']}, bare step {1e3 * row['bare_seconds']:.0f} ms")
        print(f"  input, of the time of a step               {100 * row['input_share']:.2f} %")
        print(f"  images/s of the trainer to the bare loop  {speed:.3f}  ({a:.3f}-{b:.3f})")
        print(f"  LookSAM-5 to the base recipe              {cost:.3f}  ({c:.3f}-{d:.3f})", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
