"""``looksam train``: a recipe and flags in, a trained model out."""

import argparse
import pathlib
import signal
from typing import Any

from looksam import recipes
from looksam.cli import flags
from looksam.cli.errors import SIGNALLED, usage
from looksam.cli.output import add_json, print_result, say
from looksam.cli.parser import Parser
from looksam.train.recipe import Recipe

NAME = "train"
HELP = "train by a recipe, or go on with a run that was cut off"
DESCRIPTION = """\
Train by a recipe. Every setting of it has a flag below, which takes the place of the recipe's value; "none" empties
one that may be empty. The run goes into a folder of its own; the same command goes on from its last checkpoint.
"""
EXAMPLES = """\
examples:
  looksam train digits-noise30
  looksam train digits-noise30 --method sam --rho 0.6 --seed 1 --run-dir runs/digits-sam
  looksam train cifar100-small-resnet --data-dir data --download --epochs 5
  looksam recipes --json digits     the settings of a recipe
"""


def add_arguments(parser: Parser) -> None:
    parser.usage = "looksam train RECIPE [--run-dir DIR] [--json] [--quiet] [--SETTING VALUE ...]"
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("recipe", metavar="RECIPE", help="a name that `looksam recipes` lists")
    parser.add_argument("--run-dir", metavar="DIR", help="folder of the run; by default runs/RECIPE-seedSEED")
    add_json(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    flags.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    recipe = resolve(arguments)
    run_dir = pathlib.Path(arguments.run_dir or f"runs/{arguments.recipe}-seed{recipe.seed}")
    from looksam.train import run as train

    result = train(recipe, run_dir, report=say, quiet=arguments.quiet)
    print_result(result, as_json=arguments.json)
    return _exit_code(result)


def resolve(arguments: argparse.Namespace) -> Recipe:
    """The recipe of this name, with the flags in place of its own values."""
    with usage():
        return recipes.find(arguments.recipe).recipe.replace(**flags.given(arguments))


def _exit_code(result: dict[str, Any]) -> int:
    if result["status"] == "finished":
        return 0
    return SIGNALLED + int(result.get("signal") or signal.SIGINT)
