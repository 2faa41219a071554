"""``looksam train``: a recipe and flags in, a trained model and its scores out."""

import argparse
import pathlib
import signal
from typing import Any

from looksam.cli.environment import enable_float64, prepare_jax
from looksam.cli.output import FAILED, SIGNALLED, print_result, report
from looksam.cli.parser import (
    Command,
    Parser,
    add_json,
    add_processes,
    add_quiet,
    add_recipe,
    add_settings,
    process_arguments,
    recipe_named,
    run_name,
)
from looksam.trainer.run_folder.run_directory import check_recipe
from looksam.trainer.run_folder.trackers import check_installed

TRAIN_DESCRIPTION = """\
Train with a recipe. Each of its settings has a flag below that overrides the recipe's value; "none" clears a setting
that may be empty. The run gets a folder of its own, and the same command resumes it from its last checkpoint.
"""
TRAIN_EXAMPLES = """\
examples:
  looksam train digits-noise30
  looksam train digits-noise30 --method sam --rho 0.6 --seed 1 --run-dir runs/digits-sam
  looksam train digits-noise30 --start 0.8          the rule acts in the last fifth of the run
  looksam train digits-noise30 --validation 0.2 --patience 5 --max-minutes 30
  looksam train cifar100-small-resnet --data-dir data --download --epochs 5
  looksam train folder-resnet --data-dir photos     your own images: photos/train/CLASS/*.jpg and photos/val
  looksam train my_recipe.py --model net.py:build   your own recipe and model
  looksam train folder-vit --data-dir photos --init-from runs/other --freeze "^(embed|blocks/[0-3])/"
  looksam recipes --json digits     the settings of a recipe
"""


def _add_train_arguments(parser: Parser) -> None:
    parser.usage = "looksam train RECIPE [--run-dir DIR] [--json] [--quiet] [--SETTING VALUE ...]"
    add_recipe(parser)
    parser.add_argument("--run-dir", metavar="DIR", help="folder of the run; by default runs/RECIPE-seedSEED")
    add_json(parser)
    add_quiet(parser)
    add_processes(parser)
    add_settings(parser)


def _train(arguments: argparse.Namespace) -> int:
    recipe = recipe_named(arguments.recipe, arguments)
    run_dir = pathlib.Path(arguments.run_dir or f"runs/{run_name(arguments.recipe)}-seed{recipe.seed}")
    processes = process_arguments(arguments)
    check_installed(recipe)
    if recipe.groups != "device":  # which the devices decide, and so JAX
        check_recipe(run_dir, recipe)
    prepare_jax()
    enable_float64([recipe])
    from looksam.trainer import distributed, run

    with distributed.session(processes and distributed.DistributedConfig(*processes)):
        result = run(recipe, run_dir, report=report, quiet=arguments.quiet, started=arguments.started)
        if distributed.is_primary():
            print_result(result, as_json=arguments.json)
    return _exit_code(result)


def _exit_code(result: dict[str, Any]) -> int:
    if result["status"] == "interrupted":
        return SIGNALLED + int(result.get("signal") or signal.SIGINT)
    return FAILED if result["status"] == "diverged" else 0  # also where --max-minutes stopped it, as asked


COMMANDS = (
    Command(
        "train",
        "train with a recipe, or resume an interrupted run",
        TRAIN_DESCRIPTION,
        TRAIN_EXAMPLES,
        _add_train_arguments,
        _train,
    ),
)
