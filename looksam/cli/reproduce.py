"""``looksam reproduce``: the paper's tables and figures."""

import argparse
import math
import pathlib
from typing import TYPE_CHECKING

from looksam.arguments import did_you_mean
from looksam.cli.environment import prepare_jax
from looksam.cli.output import SIGNALLED, interrupted_with, report, usage
from looksam.cli.parser import Command, Parser, add_processes, process_arguments
from looksam.experiments import EXPERIMENT_NAMES, MEDIUM_NAMES
from looksam.trainer import plan
from looksam.trainer.recipe import Recipe

if TYPE_CHECKING:
    from looksam.experiments.reproduction import Reproduction

DESCRIPTION = """\
Run an experiment of the paper and report on it. At small scale, small models answer the same question on two CPU cores;
every finished run is stored in OUT/runs and shared between experiments, and the same command resumes an interrupted
one. At medium scale, more images and hours; runs and reports are in OUT/medium. At full scale the recipes are the
paper's, unchanged. --dry-run prints what there is to train, at full scale what it would cost; --report-only trains
nothing.
Writes OUT/ID/ (report.md, tables as CSV, figures as SVG and PNG, summary.json), and a summary and a page of all that
are complete, OUT/summary/ and OUT/report.html.
"""
EXAMPLES = """\
experiments:
  cifar100     accuracy of SGD-M, SAM, SAM-k and LookSAM-k     rho        sensitivity to rho
  vit          the same for ViTs, and their time               tradeoff   accuracy and throughput as k grows
  large-batch  LAMB, SAM, LookSAM, Look-LayerSAM               sam5-gap   SAM-5 against SAM over epochs
  augment-64k  the largest batch with RandAugment and Mixup    drift      is g_v the slow component?
  time         LAMB, LayerSAM, Look-LayerSAM                   bound      the PAC-Bayes bound as a number
  alpha        sensitivity to alpha

at medium scale, next to cifar100, vit and large-batch:
  rivals       the base trained longer, SAM, LookSAM and their rivals at equal tuning
  confirm      SAM, SAM-5, LookSAM-5 and LookSAM-5 in the last fifth against the base, on further seeds

examples:
  looksam reproduce drift --data-dir data
  looksam reproduce --all --data-dir data --download
  looksam reproduce --scale medium --data-dir data
  looksam reproduce vit --scale full --data-dir imagenet
  looksam reproduce large-batch --scale full --dry-run --mesh data=8 --microbatch 256
"""


def _add_arguments(parser: Parser) -> None:
    parser.usage = (
        "looksam reproduce (ID ... | --all) [--scale small|medium|full] [--seeds N] [--dry-run | --report-only] "
        "[--data-dir DIR]"
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="experiments, see below")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--scale", choices=("small", "medium", "full"), default="small", help="(small)")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs per recipe (5, at full scale 1)")
    parser.add_argument(
        "--dry-run", action="store_true", help="report what would be run; at full scale: compile and plan it"
    )
    parser.add_argument(
        "--report-only", action="store_true", help="train nothing: report on the runs that are stored; not full scale"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the data (LOOKSAM_DATA)")
    parser.add_argument("--download", action="store_true", help="download CIFAR-100 if it is not there")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that train (one per core); not full scale")
    parser.add_argument("--mesh", default="auto", help="full: devices, such as data=8 (auto: all)")
    parser.add_argument("--microbatch", type=int, metavar="N", help="full: images processed at a time")
    parser.add_argument("--out", default="results", metavar="DIR", help="folder of the results (results)")
    add_processes(parser)


def _run(arguments: argparse.Namespace) -> int:
    with usage():
        names = _names(arguments)
    if arguments.scale == "full":
        return _plan(names, arguments) if arguments.dry_run else _full(names, arguments)
    return _on_two_cores(names, arguments)


def _names(arguments: argparse.Namespace) -> tuple[str, ...]:
    Recipe(mesh=arguments.mesh)  # raises if the mesh is not understood
    medium = arguments.scale == "medium"
    names, others = (MEDIUM_NAMES, EXPERIMENT_NAMES) if medium else (EXPERIMENT_NAMES, MEDIUM_NAMES)
    for name in arguments.ids:
        if name in others and name not in names:
            fix = "leave out --scale medium" if medium else "pass --scale medium"
            raise ValueError(f"experiment {name!r} is not at {arguments.scale} scale; {fix}.")
        if name not in names:
            raise ValueError(f"experiment {name!r} is unknown{did_you_mean(name, names)}")
    if (arguments.all and arguments.ids) or not (arguments.all or arguments.ids or medium):
        raise ValueError(f"name experiments, or pass --all; there are {', '.join(names)}.")
    for option in ("seeds", "workers", "microbatch"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ValueError(f"--{option} {value} is out of range; pass at least 1.")
    if arguments.report_only and (arguments.scale == "full" or arguments.dry_run):
        raise ValueError("--report-only is for stored runs; leave out --dry-run, and --scale full.")
    if arguments.scale != "full" and arguments.seeds == 1:
        raise ValueError("--seeds 1 has no spread; pass at least 2.")
    return tuple(dict.fromkeys(arguments.ids)) or names


def _on_two_cores(names: tuple[str, ...], arguments: argparse.Namespace) -> int:
    prepare_jax()
    from looksam.experiments.reproduction import Reproduction

    experiments = Reproduction(pathlib.Path(arguments.out), names, arguments.seeds or 5, arguments.scale)
    if arguments.dry_run:
        print(experiments.outlook())
        return 0
    if not arguments.report_only:
        _train(experiments, arguments)
    for text in experiments.write():
        print(text, flush=True)
    return 0


def _train(experiments: "Reproduction", arguments: argparse.Namespace) -> None:
    kept = f"interrupted; finished runs are kept in {experiments.store.folder}, and the same command resumes"
    with interrupted_with(lambda: kept):
        experiments.fill(arguments.workers, arguments.data_dir, arguments.download, report)


def _full(names: tuple[str, ...], arguments: argparse.Namespace) -> int:
    prepare_jax()
    from looksam.experiments import EXPERIMENTS, full_scale
    from looksam.experiments.report.text import section_text
    from looksam.trainer import distributed

    changes = {name: getattr(arguments, name) for name in ("mesh", "microbatch", "data_dir", "download")}
    processes = process_arguments(arguments)
    with distributed.session(processes and distributed.DistributedConfig(*processes)):
        for name in _with_recipes(names):
            folder = pathlib.Path(arguments.out) / name
            folder.mkdir(parents=True, exist_ok=True)  # before any time is spent
            try:
                section, scores = full_scale.train(EXPERIMENTS[name], arguments.seeds or 1, folder, report, **changes)
            except full_scale.Stopped as stop:
                return SIGNALLED + stop.signal
            if distributed.is_primary():
                full_scale.write(section, scores, folder)
                print(section_text(section), flush=True)
    return 0


def _with_recipes(names: tuple[str, ...]) -> list[str]:
    from looksam.experiments import EXPERIMENTS

    for name in names:
        if not EXPERIMENTS[name].full:
            report(f"{name} has no full scale: it is computed for the small models only")
    return [name for name in names if EXPERIMENTS[name].full]


def _plan(names: tuple[str, ...], arguments: argparse.Namespace) -> int:
    plan.use_virtual_devices(math.prod(Recipe(mesh=arguments.mesh).mesh_sizes() or (1,)))  # before JAX is loaded
    from looksam.experiments import EXPERIMENTS, full_scale

    for name in _with_recipes(names):
        recipes = full_scale.full_recipes(EXPERIMENTS[name])
        print(f"{name}: {len(recipes)} recipes at full scale\n  " + "\n  ".join(recipes), flush=True)
        changes = {"mesh": arguments.mesh, "microbatch": arguments.microbatch}
        for label, recipe in full_scale.planned(EXPERIMENTS[name], **changes).items():
            result = plan.make_plan(recipe, plan.find_chip("tpu-v3"), plan.DEFAULT_UTILISATION, report)
            print(f"\n{plan.as_text(label, result)}", flush=True)
    return 0


COMMANDS = (
    Command(
        "reproduce",
        "reproduce the paper's tables and figures, at small, medium or full scale",
        DESCRIPTION,
        EXAMPLES,
        _add_arguments,
        _run,
    ),
)
