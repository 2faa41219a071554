"""What a rule costs in JAX: step time as a ratio to the base optimizer, and memory.

    python benchmarks/rules.py                              # everything, to results/benchmarks/rules.json and .svg
    python benchmarks/rules.py --models mlp --rounds 40 --json build/rules.json

All methods take turns in one interleaved run, each in a process of its own (see looksam/bench). JAX runs with the
settings of the command line, which docs/training.md recommends for a CPU.
"""

import timed

from looksam.bench.subjects import Case, choose
from looksam.methods import settings_of
from looksam.trainer.recipe import Recipe

ROWS = (
    *("sam", "sam_5", "look_sam_5", "look_sam_10", "layer_sam", "look_layer_sam"),
    *("asam", "gsam", "msam", "sam@0.8", "look_sam_5@0.8"),
)
LARGE = ("sam", "sam_5", "look_sam_5", "msam", "look_sam_5@0.8")  # of the MLP: each process takes about a gigabyte
FORMS = ("static", "traced", "optax", "optax_opaque")


def cases(recipe: Recipe) -> list[Case]:
    half = Case(
        *("static", "look_sam_5", recipe.replace(**settings_of("look_sam_5"))),
        variant="g_v in bfloat16",
        store_dtype="bfloat16",
        environment=timed.JAX_ENVIRONMENT,
    )
    rows, forms = (LARGE, FORMS[:2]) if recipe.model == "mlp_20m" else (ROWS, FORMS)
    return [*choose(recipe, rows, forms, timed.JAX_ENVIRONMENT).cases, half]


if __name__ == "__main__":
    timed.run("rules", __doc__, cases, rounds=7, sets=1)
