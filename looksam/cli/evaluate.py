"""``looksam eval``: the test scores of a run's newest checkpoint."""

import argparse

from looksam.cli.output import add_json, print_result
from looksam.cli.parser import Parser
from looksam.cli.run_folder import run_folder

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
    directory = run_folder(arguments.run_dir)
    from looksam.trainer import evaluate_run

    print_result(evaluate_run(directory), as_json=arguments.json)
    return 0
