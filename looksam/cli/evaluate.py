"""``looksam eval``: the test scores of a run's newest checkpoint."""

import argparse
import pathlib

from looksam.cli.errors import UsageError
from looksam.cli.output import add_json, print_result
from looksam.cli.parser import Parser
from looksam.train.suggest import nearest

NAME = "eval"
HELP = "test the newest checkpoint of a run"
DESCRIPTION = """\
Test the newest good checkpoint of a run, on the data its recipe names. The run may still be going on.
"""
EXAMPLES = """\
examples:
  looksam eval runs/digits-noise30-seed0
  looksam eval runs/digits-noise30-seed0 --json
"""


def add_arguments(parser: Parser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("run_dir", metavar="RUN", help="the folder of a run")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    directory = pathlib.Path(arguments.run_dir)
    if not directory.is_dir():
        raise UsageError(f"{str(directory)!r} is not a folder{_nearest_folder(directory)}")
    from looksam.train import evaluate_run

    print_result(evaluate_run(directory), as_json=arguments.json)
    return 0


def _nearest_folder(directory: pathlib.Path) -> str:
    folders = directory.parent.iterdir() if directory.parent.is_dir() else ()
    names = [folder.name for folder in folders if folder.is_dir()]
    return nearest(directory.name, names, "pass the folder of a run")
