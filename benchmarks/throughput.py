"""Images per second of the trainer's base step in JAX, relative to eager PyTorch with the same model and batch.

    python benchmarks/throughput.py                         # everything, to results/benchmarks/throughput.json and .svg
    python benchmarks/throughput.py --recipes cifar100-small-vit --rounds 20 --json build/throughput.json

Both run on all cores, in turns, in processes of their own (see looksam/bench). JAX runs with XLA's own settings, with
its YNNPACK library off for convolutions, and with it off altogether; a ResNet is also measured in micro-batches.
Nothing is augmented, as PyTorch's step does not augment.
"""

import argparse
import pathlib

from timed import RESULTS

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
FLAG = "--xla_cpu_experimental_ynn_fusion_type="
VARIANTS = {  # XLA_FLAGS
    "XLA's defaults": "",
    "convolutions without YNNPACK": f"{FLAG}-individual_convolution",
    "without YNNPACK": FLAG,
}
SPLIT, PARTS = "cifar100-small-resnet", 4


def cases(name: str, recipe: Recipe) -> list[Case]:
    torch = Case("torch", "base", recipe)
    settings = {variant: (recipe, flags) for variant, flags in VARIANTS.items()}
    if name == SPLIT:
        split = recipe.replace(microbatch=recipe.batch_size // PARTS)
        settings |= {f"{v}, microbatch={split.microbatch}": (split, flags) for v, flags in VARIANTS.items()}
    jax = [
        Case("static", "base", own, base=torch.name, variant=variant, environment={"XLA_FLAGS": flags})
        for variant, (own, flags) in settings.items()
    ]
    return [torch, *jax]


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
