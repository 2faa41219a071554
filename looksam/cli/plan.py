"""``looksam plan``: what a run would cost on a mesh of accelerators, without them."""

import argparse

from looksam.cli import flags
from looksam.cli.errors import usage
from looksam.cli.output import add_json, print_json, say
from looksam.cli.parser import Parser
from looksam.cli.train import resolve
from looksam.trainer.recipe import Recipe

NAME = "plan"
HELP = "memory, FLOPs, bytes sent and hours of a run on any mesh, from the compiled programs"
DESCRIPTION = """\
Compile the programs of a recipe for a mesh of virtual devices (one device without --mesh), with and without the second
gradient, and read from them what a device computes, sends and holds in memory. With a chip's published figures that
gives hours for the optimizer alone, for the rule on every step, and for the recipe's method; the paper's stand next
to them. No data is read, no weights are allocated, and nothing is trained.
"""
EXAMPLES = """\
examples:
  looksam plan vit_b16-lamb-32768-look_layer_sam --mesh data=8 --microbatch 1024
  looksam plan vit_b16-lamb-32768-look_layer_sam --mesh data=2048 --chip tpu-v3 --dtype bfloat16
  looksam plan vit_b16-look_sam-5 --mesh data=4,fsdp=2 --microbatch 512 --chip h100 --utilisation 0.5
"""


def add_arguments(parser: Parser) -> None:
    from looksam.trainer.plan import CHIPS, DEFAULT_UTILISATION

    parser.usage = "looksam plan RECIPE [--mesh MESH] [--chip CHIP] [--utilisation X] [--json] [--SETTING VALUE ...]"
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("recipe", metavar="RECIPE", help="a name that `looksam recipes` lists")
    parser.add_argument(
        "--chip",
        default="tpu-v3",
        metavar="CHIP",
        help=f"the chip to estimate for: {', '.join(CHIPS)} (tpu-v3, the paper's)",
    )
    parser.add_argument(
        "--utilisation",
        type=float,
        default=DEFAULT_UTILISATION,
        metavar="X",
        help=f"share of the chip's peak that is reached, a guess ({DEFAULT_UTILISATION})",
    )
    add_json(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    flags.add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    from looksam.trainer import plan

    recipe = resolve(arguments)
    with usage():
        chip = plan.find_chip(arguments.chip)
        plan.check_utilisation(arguments.utilisation)
    plan.use_virtual_devices(_devices(recipe))
    result = plan.make_plan(recipe, chip, arguments.utilisation, (lambda _: None) if arguments.quiet else say)
    if arguments.json:
        print_json({"name": arguments.recipe} | result)
    else:
        print(plan.as_text(arguments.recipe, result), flush=True)
    return 0


def _devices(recipe: Recipe) -> int:
    data, fsdp = recipe.mesh_sizes() or (1, 1)
    return data * fsdp
