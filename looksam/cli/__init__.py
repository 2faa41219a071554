"""The command line. It parses, calls the library and prints; importing it does not import JAX."""

import sys
import time
from collections.abc import Sequence

import looksam
from looksam.cli.output import guarded

__all__ = ["main"]

DESCRIPTION = "Sharpness-aware training at the cost of plain training: SAM, LookSAM and Look-LayerSAM."
EPILOG = """\
start here:
  looksam recipes                   the recipes, with the paper's scores
  looksam train digits-noise30      a first run: seconds on a laptop, nothing to download
  looksam eval runs/digits-noise30-seed0
  looksam predict RUN photo.jpg     the classes of your own images
  looksam export RUN --out DIR      the model for PyTorch and others

exit codes:
  0    done
  1    the run failed, diverged or could not start; the message says why and what is safe
  2    the command line is wrong
  130  stopped by Ctrl-C; the run is saved, and the same command resumes it
  143  stopped by SIGTERM, likewise

LOOKSAM_DATA names the folder of the datasets. LOOKSAM_DEBUG=1 adds the traceback to an error.
JAX_ENABLE_COMPILATION_CACHE=false keeps no compiled programs for the next run.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process, and return its exit code."""
    flags: dict[str, str] = {}  # of the command, once it is known
    return guarded(lambda: _run(sys.argv[1:] if argv is None else list(argv), flags), flags)


def _run(argv: list[str], flags: dict[str, str]) -> int:
    started = time.perf_counter()
    # imported here, where a missing package is explained
    from looksam.cli import analyze, bench, compare, evaluate, export, plan, predict, recipes, reproduce, train
    from looksam.cli.flags import flags_of
    from looksam.cli.parser import Parser

    parser = Parser(prog="looksam", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"looksam {looksam.__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for module in (train, evaluate, predict, export, analyze, compare, reproduce, bench, plan, recipes):
        for command in module.COMMANDS:
            command.add_to(subparsers)
    arguments = parser.parse_args(argv)
    arguments.started = started
    flags |= flags_of(arguments.parser)
    return arguments.run(arguments)
