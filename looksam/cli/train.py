"""``looksam train``: a recipe and flags in, a trained model out."""

import argparse
import pathlib
import re
import signal
from typing import Any

from looksam.cli import flags
from looksam.cli.errors import SIGNALLED, UsageError, usage
from looksam.cli.output import add_json, print_result, say
from looksam.cli.parser import Parser
from looksam.trainer import recipes
from looksam.trainer.recipe import Recipe

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
    add_processes(parser)
    flags.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    recipe = resolve(arguments)
    run_dir = pathlib.Path(arguments.run_dir or f"runs/{arguments.recipe}-seed{recipe.seed}")
    settings = meeting(arguments)
    from looksam.trainer import distributed
    from looksam.trainer import run as train

    with distributed.joined(settings and distributed.DistributedConfig(*settings)):
        result = train(recipe, run_dir, report=say, quiet=arguments.quiet)
        if distributed.is_primary():
            print_result(result, as_json=arguments.json)
    return _exit_code(result)


def add_processes(parser: Parser) -> None:
    group = parser.add_argument_group("many processes, each started by this same command")
    group.add_argument("--distributed", action="store_true", help="find the others by the cluster: SLURM, TPU pod, ...")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="or by the address of process 0, with the next two")
    group.add_argument("--process-count", metavar="N", type=int, help="how many processes there are")
    group.add_argument("--process-index", metavar="I", type=int, help="which of them this is, from 0")


def meeting(arguments: argparse.Namespace) -> tuple[str | None, int | None, int | None] | None:
    """Where the processes meet: None for one process, (None, None, None) for the cluster to say."""
    coordinator, count, index = arguments.coordinator, arguments.process_count, arguments.process_index
    given = [value for value in (coordinator, count, index) if value is not None]
    if not given:
        return (None, None, None) if arguments.distributed else None
    if arguments.distributed or len(given) < 3:
        raise UsageError(
            "pass --distributed alone, or all of --coordinator HOST:PORT, --process-count N and --process-index I"
        )
    if not re.fullmatch(r"\S+:\d+", coordinator):
        raise UsageError(f"--coordinator {coordinator!r} is not an address; pass HOST:PORT of process 0")
    if not 0 <= index < count:
        raise UsageError(f"--process-index {index} is not one of --process-count {count}; count from 0")
    return coordinator, count, index


def resolve(arguments: argparse.Namespace) -> Recipe:
    """The recipe of this name, with the flags in place of its own values."""
    with usage():
        return recipes.find(arguments.recipe).recipe.replace(**flags.given(arguments))


def _exit_code(result: dict[str, Any]) -> int:
    if result["status"] == "finished":
        return 0
    return SIGNALLED + int(result.get("signal") or signal.SIGINT)
