"""The command line. A command is a module with NAME, HELP, add_arguments and run; none loads JAX before it runs."""

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

import looksam
from looksam.cli.errors import guarded
from looksam.cli.parser import Parser

__all__ = ["main"]

DESCRIPTION = "Sharpness-aware training at the cost of plain training: SAM, LookSAM and Look-LayerSAM."
EPILOG = """\
start here:
  looksam recipes                   what there is to train, with the paper's scores
  looksam train digits-noise30      a first run: seconds on a laptop, nothing to download
  looksam eval runs/digits-noise30-seed0

exit codes:
  0    done
  1    the run failed, or could not start; the message says why and what is safe
  2    the command line is wrong
  130  stopped by Ctrl-C; the run is saved, and the same command goes on
  143  stopped by SIGTERM, likewise

LOOKSAM_DATA names the folder of the data sets. LOOKSAM_DEBUG=1 adds the traceback to an error.
"""


class Command(Protocol):
    """What a command module offers."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: Parser) -> None: ...
    def run(self, arguments: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process, and return its exit code."""
    return guarded(lambda: _run(sys.argv[1:] if argv is None else list(argv)))


def _commands() -> tuple[Command, ...]:
    # here, where a missing package is explained
    from looksam.cli import analyze, compare, evaluate, plan, recipes, reproduce, train

    return (train, evaluate, analyze, compare, reproduce, plan, recipes)


def _run(argv: list[str]) -> int:
    parser = Parser(prog="looksam", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"looksam {looksam.__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for command in _commands():
        subparser = subparsers.add_parser(command.NAME, help=command.HELP)
        subparser.set_defaults(run=command.run)
        command.add_arguments(subparser)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)
