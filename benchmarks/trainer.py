"""What the trainer adds to a step, and what LookSAM costs inside it, on CIFAR-100.

    python benchmarks/trainer.py --data-dir DATA/cifar100 --json results/benchmarks/trainer.json

Two loops over the same compiled step take turns, a cycle of ten steps at a time: the bare one feeds it the same batch,
already on the device, again and again; the trainer's draws its own batches and fetches and writes its metrics. One
ratio is therefore the cost of input and logging, and the other that of LookSAM-5 compared with the base recipe, both
in the trainer. Ratios are taken within each round; the median and the middle half are printed. About five minutes on
two CPU cores.
"""

import argparse
import functools
import json
import pathlib
import tempfile

import jax

from looksam.bench.harness import clocked, interleave
from looksam.trainer import recipes
from looksam.trainer.progress import Progress
from looksam.trainer.run_folder.metrics import MetricsLog
from looksam.trainer.training import Training

CYCLE = 10
RECIPES = ("cifar100-small-vit", "cifar100-small-resnet")


class Runner:
    def __init__(self, recipe, folder):
        self.training = Training(recipe)
        self.state, self.count = self.training.init(), 0
        self.arguments = jax.device_put(self.training.batches.arguments(0))
        self.log = MetricsLog(folder)
        self.progress = Progress(images_per_step=recipe.batch_size, quiet=True)

    def bare(self, steps):
        """The compiled step alone, on one batch that is on the device already."""
        for _ in range(steps):
            programs = self.training.programs
            self.state, _ = programs.step(self.state, programs.refreshes(self.count), *self.arguments)
            self.count += 1
        jax.block_until_ready(self.state)

    def loop(self, steps):
        """The trainer's step: its own batches, metrics fetched and written once per turn."""
        for i in range(steps):
            self.state, metrics = self.training.step(self.state, self.count, log=i == steps - 1)
            self.count += 1
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.log.write(self.count, "train", values)
        self.progress.update(self.count, loss=values["loss"])
        jax.block_until_ready(self.state)

    def inputs(self, steps):
        """What a step waits for: the next indices, drawn and put on the device."""
        for i in range(steps):
            jax.block_until_ready(jax.device_put(self.training.batches.arguments(i)))


def measure(name, data_dir, rounds, batch):
    recipe = recipes.find(name).recipe.replace(data_dir=data_dir, train_limit=2000, batch_size=batch)
    with tempfile.TemporaryDirectory() as folder:
        base = Runner(recipe.replace(method="base"), pathlib.Path(folder))
        look = Runner(recipe.replace(method="look_sam", k=5), pathlib.Path(folder))
        loops = {"bare": base.bare, "trainer": base.loop, "look_sam": look.loop, "input": base.inputs}
        turns = {part: functools.partial(clocked, loop, CYCLE) for part, loop in loops.items()}
        timings = interleave(turns, rounds)
    return {
        "recipe": name,
        "batch": batch,
        "bare_seconds": timings.milliseconds("bare") / 1e3,
        "input_share": timings.ratios("input", ["bare"])["wall"][1],
        "images_per_second_to_bare": timings.ratios("bare", ["trainer"])["wall"],
        "look_sam_5_to_base": timings.ratios("look_sam", ["trainer"])["wall"],
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
