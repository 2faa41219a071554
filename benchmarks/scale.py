"""Memory of a step as the batch grows, processed in micro-batches of one size.

    python benchmarks/scale.py --data-dir DATA/cifar100 --json results/benchmarks/scale.json

Each batch size gets a process of its own, which trains the recipe ``cifar100-64k`` (a small ViT, LAMB, Look-LayerSAM,
RandAugment, Mixup) for a few steps, including refresh steps. Two numbers are reported: the compiler's temporaries of
the larger program, which hold the activations, and the peak memory of the process minus its memory before the first
step. The images themselves, 3 kB each, grow with the batch.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys

BATCHES = (1024, 8192, 65536)
MICROBATCH = 1024
STEPS = 6


def measure(batch: int, data_dir: str) -> dict:
    from looksam.trainer import recipes
    from looksam.trainer.training import Training, compile_step

    recipe = recipes.find("cifar100-64k").recipe.replace(
        batch_size=batch, microbatch=MICROBATCH, data_dir=data_dir, mesh="data=1"
    )
    training = Training(recipe)
    state = training.init()
    before = _memory()
    losses = []
    for i in range(STEPS):
        state, metrics = training.step(state, i)
        losses.append(round(float(metrics["loss"]), 4))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    temporaries = compile_step(recipe, training.layout, True).memory_analysis().temp_size_in_bytes
    images = batch * 3 * 32**2
    return {"batch": batch, "temporaries": temporaries, "images": images, "grown": peak - before, "losses": losses}


def _memory() -> int:
    """The current memory of this process, in bytes."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, help="folder of CIFAR-100")
    parser.add_argument("--json", help="write the results here")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.batch:
        print(json.dumps(measure(arguments.batch, arguments.data_dir)))
        return
    rows = []
    for batch in BATCHES:
        command = [sys.executable, __file__, "--data-dir", arguments.data_dir, "--batch", str(batch)]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        mib = {name: rows[-1][name] / 2**20 for name in ("temporaries", "images", "grown")}
        print(
            f"batch {batch:6,}: temporaries {mib['temporaries']:7.1f} MiB, images {mib['images']:6.1f} MiB, "
            f"process grew by {mib['grown']:7.1f} MiB; losses {rows[-1]['losses']}",
            flush=True,
        )
    if arguments.json:
        result = {"microbatch": MICROBATCH, "steps": STEPS, "rows": rows}
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
