"""What a rule costs in PyTorch: step time as a ratio to the base optimizer, next to another library's.

    python benchmarks/torch_rules.py                     # everything, to results/benchmarks/torch_rules.json and .svg
    python benchmarks/torch_rules.py --models mlp --rounds 40 --json build/torch_rules.json

All methods take turns in one interleaved run, each in a process of its own (see looksam/bench). Whether a large
gradient finds memory that was freed before, or must ask the operating system for new pages, is much of the MLP's time;
several sets of processes average that out. Each process has one thread, so that CPU time does not include threads that
wait.
"""

import dataclasses

import timed

from looksam.bench.subjects import Case, choose
from looksam.methods import settings_of
from looksam.trainer.recipe import Recipe

ROWS = (
    *("sam", "sam_5", "look_sam_5", "look_sam_10", "layer_sam", "look_layer_sam"),
    *("asam", "gsam", "msam", "sam@0.8", "look_sam_5@0.8"),
)
FORMS = ("torch", "pytorch_optimizer", "pytorch_optimizer_one_pass")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def cases(recipe: Recipe) -> list[Case]:
    half = Case(
        *("torch", "look_sam_5", recipe.replace(**settings_of("look_sam_5"))),
        variant="g_v in bfloat16",
        store_dtype="bfloat16",
    )
    chosen = [*choose(recipe, ROWS, FORMS).cases, half]
    return [dataclasses.replace(case, environment=ONE_THREAD) for case in chosen]


if __name__ == "__main__":
    timed.run("torch_rules", __doc__, cases, rounds=3, sets=3)
