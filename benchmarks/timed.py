"""What the benchmarks of the rules share: their recipes, their flags, and the files that they write.

The models are the paper's at small scale, with batch size 16, and an MLP of 20M parameters with batch size 8, whose
step is spent on moving parameters. Nothing is augmented, so that JAX and PyTorch do the same work.
"""

import argparse
import pathlib
from collections.abc import Callable

from looksam.bench.measure import measure
from looksam.bench.subjects import Case
from looksam.cli.environment import variables
from looksam.cli.output import report
from looksam.experiments.report import bench_report
from looksam.trainer.recipe import Recipe

RESULTS = pathlib.Path(__file__).parent.parent / "results/benchmarks"
CIFAR = Recipe(dataset="cifar100", mesh="data=1", batch_size=16, rho=0.05, alpha=0.7, k=5)
MODELS = {
    "vit": CIFAR.replace(model="vit", patch=4, width=128, depth=4, heads=4),
    "resnet": CIFAR.replace(model="resnet_small"),
    "mlp": CIFAR.replace(model="mlp_20m", batch_size=8),
}
JAX_ENVIRONMENT = {name: value for name, value in variables().items() if not name.startswith("JAX_")}  # no cache
OPTIMIZERS = {
    "adamw": {"optimizer": "adamw", "learning_rate": 1e-4, "weight_decay": 0.1, "decay_all": False},
    "sgdm": {"optimizer": "sgdm", "learning_rate": 1e-3},
}


def run(name: str, about: str, cases_of: Callable[[Recipe], list[Case]], *, rounds: int, sets: int) -> None:
    """Measures the cases of every model and optimizer; writes results/benchmarks/NAME.json and .svg after each."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--rows", nargs="+", help="only these methods, and the base optimizers (all)")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds per set of processes ({rounds})")
    parser.add_argument("--sets", type=int, default=sets, help=f"sets of processes ({sets})")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS / f"{name}.json", help="the file to write")
    arguments = parser.parse_args()
    results = []
    for model in arguments.models:
        for optimizer in arguments.optimizers:
            recipe = MODELS[model].replace(**OPTIMIZERS[optimizer])
            wanted = arguments.rows and ("base", *arguments.rows)
            cases = [case for case in cases_of(recipe) if not wanted or case.row in wanted]
            results.append(measure(model, recipe, cases, rounds=arguments.rounds, sets=arguments.sets, report=report))
            print(f"\n{bench_report.as_text(results[-1])}", flush=True)
            bench_report.write(results, arguments.json)
