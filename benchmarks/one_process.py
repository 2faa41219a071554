"""What a rule costs in JAX when all methods share one process: step time relative to the base optimizer.

    python benchmarks/one_process.py        # about seven minutes, to results/benchmarks/one_process.json

`benchmarks/rules.py` gives each method a process of its own, as a user's run has. Which memory a process gets is luck,
and on a small ResNet the same program takes noticeably longer in one process than in another. Here the programs of
all methods take turns in one process, so that what is left is the cost of the rules.
"""

import argparse
import json
import pathlib

from looksam.cli.environment import prepare_jax

prepare_jax()

import timed  # noqa: E402

from looksam.bench.measure import environment  # noqa: E402
from looksam.experiments.engine.timer import recipe_ratios  # noqa: E402
from looksam.methods import settings_of  # noqa: E402

ROWS = ("base", "sam", "look_sam_5", "look_sam_5@0.8", "asam", "gsam", "msam")
MODELS = ("vit", "resnet")
ROUNDS = 9


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = timed.RESULTS / "one_process.json"
    parser.add_argument("--json", type=pathlib.Path, default=default, help="the file to write")
    arguments = parser.parse_args()
    found = []
    for model in MODELS:
        for optimizer, settings in timed.OPTIMIZERS.items():
            recipe = timed.MODELS[model].replace(**settings)
            measured = recipe_ratios({row: recipe.replace(**settings_of(row)) for row in ROWS}, ROUNDS)
            found.append({"model": model, "optimizer": optimizer, "ratios": measured})
            print(json.dumps(found[-1]), flush=True)
    result = {"rounds": ROUNDS, "rows": found, "environment": environment()}
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
