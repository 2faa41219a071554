"""``looksam compare``: methods side by side, as a table and a picture."""

import argparse
import json
import pathlib
from typing import Any

from looksam.cli import flags
from looksam.cli.errors import usage
from looksam.cli.output import add_json, say
from looksam.cli.parser import Parser
from looksam.trainer import recipes
from looksam.trainer.recipe import Recipe

NAME = "compare"
HELP = "train base, SAM, SAM-k and LookSAM-k side by side: accuracy against cost"
METHODS = ("base", "sam", "sam_k", "look_sam", "layer_sam", "look_layer_sam")
DESCRIPTION = """\
Train several methods on one recipe, all seeds at once, and set accuracy, cost and sharpness side by side. Each method
runs at its own rho and alpha where the recipe has tuned ones, and at the recipe's otherwise. Prints a table; writes a
picture and results.json. With --tune it picks each method's rho and alpha instead, from eight settings a method, on a
part of the training set (--validation) that is held out with clean labels; the test set is not read.
"""
EXAMPLES = """\
examples:
  looksam compare                                  digits with 30 % label noise and with clean labels
  looksam compare digits-noise30 --tune --validation 0.25 --seeds 5
  looksam compare digits --optimizer lamb --learning-rate 0.02 --methods base layer_sam look_layer_sam
  looksam compare cifar100-small-resnet --train-limit 5000 --epochs 5 --seeds 2
"""


def add_arguments(parser: Parser) -> None:
    parser.usage = "looksam compare [RECIPE ...] [--methods M ...] [--seeds N] [--tune] [--SETTING VALUE ...]"
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    names = ["digits-noise30", "digits"]
    parser.add_argument("recipes", metavar="RECIPE", nargs="*", default=names, help="what to compare on")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS[:4]), help="what to compare")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="runs of each method (10)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="of interleaved timing (20)")
    parser.add_argument("--tune", action="store_true", help="pick rho and alpha on a validation split instead")
    parser.add_argument("--out", default="build/compare", metavar="DIR", help="folder of the results (build/compare)")
    add_json(parser)
    flags.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    with usage():
        if arguments.seeds < 1 or arguments.rounds < 1:
            raise ValueError("--seeds and --rounds must be at least 1.")
        chosen = {name: recipes.find(name).recipe.replace(**flags.given(arguments)) for name in arguments.recipes}
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)  # before any time is spent
    return _tune(chosen, arguments, out) if arguments.tune else _compare(chosen, arguments, out)


def _compare(chosen: dict[str, Recipe], arguments: argparse.Namespace, out: pathlib.Path) -> int:
    from looksam.experiments.comparison import compare, selected
    from looksam.experiments.report.picture import draw_comparison
    from looksam.experiments.report.table import as_text

    results = {}
    for name, recipe in chosen.items():
        settings = selected(name, recipe, arguments.methods)
        results[name] = compare(recipe, settings, seeds=arguments.seeds, rounds=arguments.rounds, report=say)
        if not arguments.json:
            print(f"\n{as_text(results[name])}\n", flush=True)
    _write(out / "results.json", results)
    draw_comparison(list(results.values()), out / "comparison.png")
    print(json.dumps(results) if arguments.json else f"{out}/comparison.png, {out}/results.json")
    return 0


def _tune(chosen: dict[str, Recipe], arguments: argparse.Namespace, out: pathlib.Path) -> int:
    from looksam.experiments.comparison import grids, tune

    results = {}
    for name, recipe in chosen.items():
        results[name] = tune(recipe, grids(name, recipe, arguments.methods), seeds=arguments.seeds, report=say)
    _write(out / "tuning.json", results)
    print(json.dumps(results) if arguments.json else f"{out}/tuning.json")
    return 0


def _write(path: pathlib.Path, results: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.rename(path)
