"""``looksam analyze``: how flat the loss is around a checkpoint of a run."""

import argparse
import math
import pathlib
from typing import Literal

from looksam.cli.environment import prepare_jax
from looksam.cli.output import UsageError, existing_run, interrupted_with, print_json
from looksam.cli.parser import Command, Parser, add_json, add_quiet, add_run
from looksam.cli.work_progress import WorkProgress

DESCRIPTION = """\
Measure how flat the loss is around a checkpoint of a run: the sharpness within a radius, the largest eigenvalues and
the trace of the Hessian, g_v compared with its second-order prediction, the loss along random directions, and the
PAC-Bayes bound. The loss is the cross-entropy of a sample of unaugmented training images, with the labels that the run
trained on and the model in evaluation mode. Numbers go to RUN/analysis/analysis.json, figures next to it, and finished
parts to RUN/analysis/parts as they come: after Ctrl-C the same command resumes. The run may still be training.
"""
EXAMPLES = """\
examples:
  looksam analyze runs/digits-noise30-seed0
  looksam analyze runs/digits-noise30-seed0 --images all --checkpoint best --rho 0.05 --eigenvalues 5
  looksam analyze runs/cifar100-small-resnet-seed0 --images 500 --json
"""


def _add_arguments(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument(
        "--images",
        type=_images,
        metavar="N|all",
        help="size of the sample of training images, and of that of test images; time grows with it (200)",
    )
    parser.add_argument("--rho", type=float, metavar="R", help="radius of the perturbation, 2-norm (the recipe's rho)")
    parser.add_argument("--eigenvalues", type=int, default=3, metavar="N", help="number of the largest eigenvalues (3)")
    parser.add_argument("--out", metavar="DIR", help="folder of the results (RUN/analysis)")
    add_quiet(parser)
    add_json(parser)


def _images(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of images; pass a number or all") from None


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    directory = existing_run(arguments.run_dir)
    out = pathlib.Path(arguments.out) if arguments.out else directory / "analysis"
    prepare_jax()
    from looksam.experiments.report import analysis_report
    from looksam.trainer import analyze_run

    progress, parts = WorkProgress(quiet=arguments.quiet), out / "parts"
    with interrupted_with(lambda: _kept(parts)), progress:
        result = analyze_run(
            directory,
            images=arguments.images,
            rho=arguments.rho,
            eigenvalues=arguments.eigenvalues,
            checkpoint=arguments.checkpoint,
            keep=parts,
            report=progress.line,
            progress=progress.update,
        )
    text = analysis_report.write(result, out)
    if arguments.json:
        print_json(result)
    else:
        print(f"{text}\n\n{out}", flush=True)
    return 0


def _kept(parts: pathlib.Path) -> str:
    if not parts.exists():
        return "interrupted before the first part was finished"
    return f"interrupted; finished parts are kept in {parts}, and the same command resumes"


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what is wrong on the command line alone, before anything is loaded."""
    for name in ("images", "eigenvalues"):
        value = getattr(arguments, name)
        if isinstance(value, int) and value < 1:
            raise UsageError(f"--{name} {value} is out of range; pass --{name} >= 1")
    if arguments.rho is not None and not 0 < arguments.rho < math.inf:
        raise UsageError(f"--rho {arguments.rho} is out of range; pass a finite --rho > 0")


COMMANDS = (
    Command(
        "analyze",
        "measure sharpness, curvature and loss landscape of a checkpoint",
        DESCRIPTION,
        EXAMPLES,
        _add_arguments,
        _run,
    ),
)
