"""``looksam reproduce``: the paper's tables and figures."""

import argparse
import json
import pathlib

from looksam.cli.errors import SIGNALLED, usage
from looksam.cli.output import say
from looksam.cli.parser import Parser
from looksam.cli.train import add_processes, meeting

NAME = "reproduce"
HELP = "every table and figure of the paper, at desk scale or in full"
IDS = (
    *("cifar100", "vit", "large-batch", "augment-64k", "time", "alpha"),
    *("rho", "tradeoff", "sam5-gap", "drift", "bound"),
)  # of looksam.experiments.registry (a test compares them): that module loads JAX
DESCRIPTION = """\
Run an experiment of the paper and report on it. At desk scale small models answer the same question on two CPU cores;
every finished run is kept in OUT/cells, shared between experiments, and an interrupted command goes on where it was.
At full scale the recipes are the paper's, unchanged; --dry-run compiles them and prints what they would cost.
Writes OUT/ID/ (report.md, tables as CSV, figures as SVG and PNG, summary.json) and OUT/report.html.
"""
EXAMPLES = """\
experiments:
  cifar100     accuracy of SGD-M, SAM, SAM-k and LookSAM-k     rho        sensitivity to rho
  vit          the same for ViTs, and their time               tradeoff   accuracy and throughput as k grows
  large-batch  LAMB, SAM, LookSAM, Look-LayerSAM               sam5-gap   SAM-5 against SAM over epochs
  augment-64k  the largest batch with RandAugment and Mixup    drift      is g_v the slow component?
  time         LAMB, LayerSAM, Look-LayerSAM                   bound      the PAC-Bayes bound as a number
  alpha        sensitivity to alpha

examples:
  looksam reproduce drift --data-dir data
  looksam reproduce --all --data-dir data --download
  looksam reproduce vit --scale full --data-dir imagenet
  looksam reproduce large-batch --scale full --dry-run --mesh data=8 --microbatch 256
"""


def add_arguments(parser: Parser) -> None:
    parser.usage = "looksam reproduce (ID ... | --all) [--scale desk|full] [--seeds N] [--dry-run] [--data-dir DIR]"
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("ids", metavar="ID", nargs="*", help="experiments, see below")
    parser.add_argument("--all", action="store_true", help="all eleven")
    parser.add_argument("--scale", choices=("desk", "full"), default="desk", help="(desk)")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each cell (5 at desk scale, 1 in full)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run; in full: compile it, and plan")
    parser.add_argument("--data-dir", metavar="DIR", help="where the data is (LOOKSAM_DATA)")
    parser.add_argument("--download", action="store_true", help="fetch CIFAR-100 if it is not there")
    parser.add_argument("--workers", type=int, metavar="N", help="desk: processes that train (one a core)")
    parser.add_argument("--mesh", default="auto", help="full: devices, like data=8 (auto: all)")
    parser.add_argument("--microbatch", type=int, metavar="N", help="full: images worked at a time")
    parser.add_argument("--out", default="results", metavar="DIR", help="folder of the results (results)")
    add_processes(parser)


def run(arguments: argparse.Namespace) -> int:
    with usage():
        names = _names(arguments)
    if arguments.scale == "full":
        return _plan(names, arguments) if arguments.dry_run else _full(names, arguments)
    return _desk(names, arguments)


def _names(arguments: argparse.Namespace) -> tuple[str, ...]:
    from looksam.arguments import did_you_mean
    from looksam.trainer.recipe import Recipe

    Recipe(mesh=arguments.mesh)  # says what is wrong with it
    for name in arguments.ids:
        if name not in IDS:
            raise ValueError(f"experiment {name!r} is unknown{did_you_mean(name, list(IDS))}")
    if arguments.all == bool(arguments.ids):
        raise ValueError(f"name experiments, or pass --all; there are {', '.join(IDS)}.")
    for option in ("seeds", "workers", "microbatch"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ValueError(f"--{option} {value} is out of range; pass at least 1.")
    if arguments.scale == "desk" and arguments.seeds == 1:
        raise ValueError("--seeds 1 has no spread; pass at least 2.")
    return IDS if arguments.all else tuple(dict.fromkeys(arguments.ids))


def _desk(names: tuple[str, ...], arguments: argparse.Namespace) -> int:
    from looksam.experiments.desk_scale import Desk

    desk = Desk(pathlib.Path(arguments.out), names, arguments.seeds or 5)
    if arguments.dry_run:
        print(desk.missing())
        return 0
    desk.fill(arguments.workers, arguments.data_dir, arguments.download, say)
    for text in desk.write():
        print(text, flush=True)
    return 0


def _full(names: tuple[str, ...], arguments: argparse.Namespace) -> int:
    from looksam.experiments import full
    from looksam.experiments.registry import EXPERIMENTS
    from looksam.experiments.report.text import section_markdown, section_text
    from looksam.trainer import distributed

    spread = {name: getattr(arguments, name) for name in ("mesh", "microbatch", "data_dir", "download")}
    settings = meeting(arguments)
    with distributed.joined(settings and distributed.DistributedConfig(*settings)):
        for name in _with_recipes(names):
            folder = pathlib.Path(arguments.out) / name
            folder.mkdir(parents=True, exist_ok=True)  # before any time is spent
            try:
                section, scores = full.train(EXPERIMENTS[name], arguments.seeds or 1, folder, say, **spread)
            except full.Stopped as stop:
                return SIGNALLED + stop.signal
            if distributed.is_primary():
                (folder / "full.json").write_text(json.dumps(scores) + "\n")
                (folder / "full.md").write_text(section_markdown(section))
                print(section_text(section), flush=True)
    return 0


def _with_recipes(names: tuple[str, ...]) -> list[str]:
    from looksam.experiments.registry import EXPERIMENTS

    for name in names:
        if not EXPERIMENTS[name].FULL:
            say(f"{name} has no full scale: it is reckoned for the models of desk scale")
    return [name for name in names if EXPERIMENTS[name].FULL]


def _plan(names: tuple[str, ...], arguments: argparse.Namespace) -> int:
    from looksam.trainer import plan
    from looksam.trainer.recipe import Recipe

    data, fsdp = Recipe(mesh=arguments.mesh).mesh_sizes() or (1, 1)
    plan.use_virtual_devices(data * fsdp)
    from looksam.experiments import full  # loads JAX, with those devices
    from looksam.experiments.registry import EXPERIMENTS

    for name in _with_recipes(names):
        recipes = full.full_recipes(EXPERIMENTS[name])
        print(f"{name}: {len(recipes)} recipes at full scale\n  " + "\n  ".join(recipes), flush=True)
        for label, recipe in full.planned(
            EXPERIMENTS[name], mesh=arguments.mesh, microbatch=arguments.microbatch
        ).items():
            result = plan.make_plan(recipe, plan.find_chip("tpu-v3"), plan.DEFAULT_UTILISATION, say)
            print(f"\n{plan.as_text(label, result)}", flush=True)
    return 0
