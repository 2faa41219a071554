"""``looksam plan``: what a run would cost on a mesh of accelerators, without the accelerators."""

import argparse
import math

from looksam.cli.output import print_json, report, silent, usage
from looksam.cli.parser import Command, Parser, add_json, add_quiet, add_recipe, add_settings, recipe_named
from looksam.trainer import plan

DESCRIPTION = """\
Compile the programs of a recipe for a mesh of virtual devices (one device without --mesh), with and without the second
gradient, and count what each device computes, sends and holds in memory. A chip's published figures turn that into
hours for the optimizer alone, for the rule on every step, and for the recipe's method, next to the paper's. Where the
memory of a device is too small, the flags of a mesh and a micro-batch that would fit are printed. No data is read, no
weights are allocated, and nothing is trained.
"""
EXAMPLES = """\
examples:
  looksam plan vit_b16-lamb-32768-look_layer_sam                             which mesh would it take?
  looksam plan vit_b16-lamb-32768-look_layer_sam --mesh data=8 --microbatch 1024
  looksam plan vit_b16-lamb-32768-look_layer_sam --mesh data=2048 --chip tpu-v3 --dtype bfloat16
  looksam plan vit_b16-look_sam-5 --mesh data=4,fsdp=2 --microbatch 512 --chip h100 --utilisation 0.5
"""


def _add_arguments(parser: Parser) -> None:
    parser.usage = "looksam plan RECIPE [--mesh MESH] [--chip CHIP] [--utilisation X] [--json] [--SETTING VALUE ...]"
    add_recipe(parser)
    parser.add_argument(
        "--chip",
        default="tpu-v3",
        metavar="CHIP",
        help=f"the chip to estimate for: {', '.join(plan.CHIPS)} (tpu-v3, the paper's)",
    )
    parser.add_argument(
        "--utilisation",
        type=float,
        default=plan.DEFAULT_UTILISATION,
        metavar="X",
        help=f"share of the chip's peak that is reached, an assumption ({plan.DEFAULT_UTILISATION})",
    )
    add_json(parser)
    add_quiet(parser)
    add_settings(parser)


def _run(arguments: argparse.Namespace) -> int:
    recipe = recipe_named(arguments.recipe, arguments, prepare=lambda: None)
    with usage():
        chip = plan.find_chip(arguments.chip)
        plan.check_utilisation(arguments.utilisation)
    plan.use_virtual_devices(math.prod(recipe.mesh_sizes() or (1,)))  # before JAX starts
    result = plan.make_plan(recipe, chip, arguments.utilisation, silent if arguments.quiet else report)
    if arguments.json:
        print_json({"name": arguments.recipe} | result)
    else:
        print(plan.as_text(arguments.recipe, result), flush=True)
    return 0


COMMANDS = (
    Command(
        "plan",
        "estimate memory, FLOPs, bytes sent and hours of a run on any mesh",
        DESCRIPTION,
        EXAMPLES,
        _add_arguments,
        _run,
    ),
)
