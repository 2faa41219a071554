"""``looksam bench``: what each method costs on a recipe, on this machine."""

import argparse
import pathlib

from looksam.bench.subjects import DEFAULT_FORMS, DEFAULT_ROWS, FORMS, choose
from looksam.cli import environment
from looksam.cli.output import print_json, report, silent, usage
from looksam.cli.parser import Command, Parser, add_json, add_quiet, add_recipe, add_settings, recipe_named

DESCRIPTION = """\
Measure on this machine what each method costs on a recipe, relative to the base optimizer of its own framework. Every
method runs in a process of its own, and all take turns in one interleaved run; medians and the middle half are over
rounds. Steps train on noise of the recipe's shape, so no data is needed. PyTorch runs the same model in eager mode,
without augmentation. What is not installed is skipped. With --out, writes DIR/bench.json and DIR/bench.svg.
"""
EXAMPLES = f"""\
methods: the names of `looksam train --method`; sam_10 and look_sam_10 name the period as well, and look_sam_5@0.8 acts
         in the last fifth of the run
forms:   {", ".join(FORMS)}

examples:
  looksam bench digits
  looksam bench cifar100-small-vit --batch-size 16 --methods base,sam,sam_5,look_sam_5,look_sam_10
  looksam bench cifar100-small-resnet --forms static,traced --out build/bench
"""


def _add_arguments(parser: Parser) -> None:
    parser.usage = "looksam bench RECIPE [--methods M,...] [--forms F,...] [--rounds N] [--SETTING VALUE ...]"
    add_recipe(parser)
    default = ",".join(DEFAULT_ROWS)
    parser.add_argument("--methods", type=_names, metavar="M,...", help=f"the methods ({default} and the recipe's own)")
    parser.add_argument(
        "--forms",
        type=_names,
        default=DEFAULT_FORMS,
        metavar="F,...",
        help="how they are run (all that is installed, except pytorch_optimizer_one_pass)",
    )
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="rounds, in which each takes one turn (10)")
    parser.add_argument("--out", metavar="DIR", help="folder for the numbers and the picture")
    add_json(parser)
    add_quiet(parser)
    add_settings(parser)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _run(arguments: argparse.Namespace) -> int:
    recipe = recipe_named(arguments.recipe, arguments)
    notify = silent if arguments.quiet else report
    with usage():
        if arguments.rounds < 1:
            raise ValueError(f"--rounds {arguments.rounds} is out of range; pass --rounds >= 1")
        rows = arguments.methods or (*DEFAULT_ROWS, recipe.method)
        cases, skipped = choose(recipe, rows, arguments.forms, environment.variables())
        for line in skipped:
            report(line)
        if not cases:
            raise ValueError("there is nothing to measure; pass other --forms or --methods")
    out = pathlib.Path(arguments.out) if arguments.out else None
    if out:
        out.mkdir(parents=True, exist_ok=True)  # before any time is spent
    from looksam.bench.measure import measure
    from looksam.experiments.report import bench_report

    result = measure(arguments.recipe, recipe, cases, rounds=arguments.rounds, report=notify)
    if arguments.json:
        print_json(result)
    else:
        print(bench_report.as_text(result), flush=True)
    if out:
        bench_report.write([result], out / "bench.json")
        notify(f"{out}/bench.json, {out}/bench.svg")
    return 0


COMMANDS = (
    Command(
        "bench",
        "measure on this machine what each method costs on a recipe",
        DESCRIPTION,
        EXAMPLES,
        _add_arguments,
        _run,
    ),
)
