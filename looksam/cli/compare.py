"""``looksam compare``: methods side by side, as a table and a picture."""

import argparse
import contextlib
import itertools
import json
import pathlib
from collections.abc import Iterator

from looksam.cli.environment import enable_float64, prepare_jax
from looksam.cli.output import interrupted_with, usage
from looksam.cli.parser import Command, Parser, add_json, add_quiet, add_settings, recipe_named
from looksam.cli.work_progress import WorkProgress
from looksam.methods import METHODS, parse_row
from looksam.trainer.recipe import Recipe

DESCRIPTION = """\
Train several methods on one recipe, all seeds at once, and compare accuracy, cost and sharpness. Each method runs with
its own learning rate, weight decay, rho and alpha where the recipe has tuned ones, and with the recipe's otherwise.
Prints a table; writes a picture and results.json. With --tune it selects these four instead, by four searches per
method around the recipe's values that end when the best is inside what was tried, on a part of the training set
(--validation) that is held out with clean labels; the test set is not read. --dtype float64 makes the numbers of a
small model the same on every machine.

Finished runs and step times are stored in OUT/runs. After Ctrl-C the same command resumes, and one with more methods or
seeds trains only what is missing. To train and time everything again, delete that folder.
"""
EXAMPLES = f"""\
methods: {", ".join(METHODS)};
         sam_10 and look_sam_10 name the period as well, and look_sam_5@0.8 acts in the last fifth of the run

examples:
  looksam compare                                  digits with 30 % label noise, without and with weight decay
  looksam compare digits-noise30 --tune --validation 0.25 --seeds 5
  looksam compare digits --optimizer lamb --learning-rate 0.02 --methods base layer_sam look_layer_sam
  looksam compare digits --methods base sam sam@0.8 asam gsam msam --tune --validation 0.25
  looksam compare cifar100-small-resnet --train-limit 5000 --epochs 5 --seeds 2
"""
RUNS = "runs"  # folder of finished runs, in that of the results
DEFAULT_METHODS = ("base", "sam", "sam_k", "look_sam")


def _add_arguments(parser: Parser) -> None:
    parser.usage = "looksam compare [RECIPE ...] [--methods M ...] [--seeds N] [--tune] [--SETTING VALUE ...]"
    names = ["digits-noise30", "digits-noise30-decay"]
    recipes = f"names that `looksam recipes` lists, or files ({' '.join(names)})"
    parser.add_argument("recipes", metavar="RECIPE", nargs="*", default=names, help=recipes)
    methods = f"the methods to compare ({' '.join(DEFAULT_METHODS)})"
    parser.add_argument("--methods", nargs="+", type=_rows, default=[DEFAULT_METHODS], metavar="M", help=methods)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="runs of each method (10)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="rounds of interleaved timing (20)")
    parser.add_argument("--tune", action="store_true", help="select hyper-parameters on a validation split instead")
    parser.add_argument("--out", default="build/compare", metavar="DIR", help="folder of the results (build/compare)")
    add_json(parser)
    add_quiet(parser)
    add_settings(parser)


def _rows(text: str) -> tuple[str, ...]:
    """Reads one name, or several with commas between them, as ``looksam bench`` takes them."""
    rows = tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        for row in rows:
            parse_row(row)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return rows


def _run(arguments: argparse.Namespace) -> int:
    with usage():
        if arguments.seeds < 1 or arguments.rounds < 1:
            raise ValueError("--seeds and --rounds must be at least 1.")
    recipes = {name: recipe_named(name, arguments) for name in arguments.recipes}
    arguments.methods = list(dict.fromkeys(itertools.chain(*arguments.methods)))
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)  # before any time is spent
    return _tune(recipes, arguments, out) if arguments.tune else _compare(recipes, arguments, out)


def _compare(recipes: dict[str, Recipe], arguments: argparse.Namespace, out: pathlib.Path) -> int:
    prepare_jax()
    enable_float64(recipes.values())
    from looksam.experiments.comparison import compare, selected, write_results
    from looksam.experiments.engine.runs import Store
    from looksam.experiments.report.comparison_report import as_text, draw_comparison

    results, store = {}, Store(out / RUNS)
    for name, recipe in recipes.items():
        settings = selected(name, recipe, arguments.methods)
        with _shown(name, out, arguments.quiet) as progress:
            results[name] = compare(
                recipe,
                settings,
                seeds=arguments.seeds,
                rounds=arguments.rounds,
                store=store,
                report=progress.line,
                progress=progress.update,
            )
        if not arguments.json:
            print(f"\n{as_text(results[name])}\n", flush=True)
    write_results(out / "results.json", results)
    draw_comparison(list(results.values()), out / "comparison.png")
    print(json.dumps(results) if arguments.json else f"{out}/comparison.png, {out}/results.json")
    return 0


def _tune(recipes: dict[str, Recipe], arguments: argparse.Namespace, out: pathlib.Path) -> int:
    prepare_jax()
    enable_float64(recipes.values())
    from looksam.experiments.comparison import starts, tune, write_results
    from looksam.experiments.engine.runs import Store

    results, store = {}, Store(out / RUNS)
    for name, recipe in recipes.items():
        with _shown(name, out, arguments.quiet) as progress:
            results[name] = tune(
                recipe,
                starts(name, recipe, arguments.methods),
                seeds=arguments.seeds,
                store=store,
                report=progress.line,
                progress=progress.update,
            )
    write_results(out / "tuning.json", results)
    print(json.dumps(results) if arguments.json else f"{out}/tuning.json")
    return 0


@contextlib.contextmanager
def _shown(name: str, out: pathlib.Path, quiet: bool) -> Iterator[WorkProgress]:
    """The progress of one recipe; Ctrl-C says what is kept."""
    folder, progress = out / RUNS, WorkProgress(prefix=f"{name}: ", quiet=quiet)

    def kept() -> str:
        if not any(folder.glob("*.json")):
            return "interrupted before the first run had ended"
        return f"interrupted; finished runs are kept in {folder}, and the same command resumes"

    with interrupted_with(kept), progress:
        yield progress


COMMANDS = (
    Command(
        "compare",
        "train several methods side by side: accuracy against cost",
        DESCRIPTION,
        EXAMPLES,
        _add_arguments,
        _run,
    ),
)
