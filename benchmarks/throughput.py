"""Images per second of the trainer's base step in JAX, relative to eager PyTorch with the same model and batch.

    python benchmarks/throughput.py                         # everything, to results/benchmarks/throughput.json and .svg
    python benchmarks/throughput.py --recipes cifar100-small-vit --rounds 20 --json build/throughput.json

Both run on all cores, in turns, in processes of their own (see looksam/bench). JAX runs with its own settings, with
XLA's own convolutions in place of YNNPACK's, and with all settings of the command line, which also keep freed memory;
the wider models run with the last alone. A ResNet is measured in micro-batches too. PyTorch runs with its defaults, and
with freed memory kept. Nothing is augmented, as PyTorch's step does not augment.
"""

import argparse
import pathlib

from timed import JAX_ENVIRONMENT, RESULTS

from looksam.bench.measure import measure
from looksam.bench.subjects import Case
from looksam.cli.output import report
from looksam.experiments.report import bench_report
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import find

SHARED = {"method": "base", "crop_padding": None, "mesh": "data=1"}
RESNET = find("cifar100-small-resnet").recipe.replace(**SHARED)
RECIPES = {
    "cifar100-small-vit": find("cifar100-small-vit").recipe.replace(**SHARED),
    "cifar100-small-resnet": RESNET,
    "ResNet, width 32": RESNET.replace(model="resnet", width=32),
    "WRN-16-2": RESNET.replace(model="wide_resnet", depth=16, widen=2),
}
OURS = "the command line's settings"
VARIANTS = {  # environment variables
    "JAX's settings": {"XLA_FLAGS": ""},
    "XLA's own convolutions": {"XLA_FLAGS": JAX_ENVIRONMENT.get("XLA_FLAGS", "")},
    OURS: JAX_ENVIRONMENT,
}
SPLIT, PARTS = "cifar100-small-resnet", 4
WIDE = ("ResNet, width 32", "WRN-16-2")  # whose steps take seconds with JAX's own settings


def cases(name: str, recipe: Recipe) -> list[Case]:
    torch = Case("torch", "base", recipe)
    variants = {OURS: JAX_ENVIRONMENT} if name in WIDE else VARIANTS
    settings = {variant: (recipe, variables) for variant, variables in variants.items()}
    if name == SPLIT:
        split = recipe.replace(microbatch=recipe.batch_size // PARTS)
        settings[f"{OURS}, microbatch={split.microbatch}"] = split, JAX_ENVIRONMENT
    jax = [
        Case("static", "base", own, base=torch.name, variant=variant, environment=variables)
        for variant, (own, variables) in settings.items()
    ]
    kept = {name: value for name, value in JAX_ENVIRONMENT.items() if name.startswith("MALLOC_")}
    return [torch, Case("torch", "base", recipe, base=torch.name, variant="memory kept", environment=kept), *jax]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=128, help="(128)")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS / "throughput.json", help="the file to write")
    arguments = parser.parse_args()
    results = []
    for name in arguments.recipes:
        recipe = RECIPES[name].replace(batch_size=arguments.batch_size)
        results.append(measure(name, recipe, cases(name, recipe), rounds=arguments.rounds, report=report))
        print(f"\n{bench_report.as_text(results[-1])}", flush=True)
        bench_report.write(results, arguments.json)


if __name__ == "__main__":
    main()
