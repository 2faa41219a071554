"""``looksam export``: a trained model as safetensors, and as a program that needs JAX alone."""

import argparse

from looksam.cli.environment import prepare_jax
from looksam.cli.output import existing_run, print_json, report
from looksam.cli.parser import Command, Parser, add_json, add_run

DESCRIPTION = """\
Write a trained model for use elsewhere: model.safetensors with PyTorch's names (looksam.torch.load_exported reads it),
config.json with the class names and the preprocessing, and model.stablehlo, which needs JAX alone. The data of the run
need not be there.
"""
EXAMPLES = """\
examples:
  looksam export runs/flowers --out exported/flowers
  looksam export runs/flowers --out exported/flowers --checkpoint best --no-stablehlo
"""


def _add_arguments(parser: Parser) -> None:
    add_run(parser)
    parser.add_argument("--out", metavar="DIR", help="folder to write (RUN/export)")
    parser.add_argument("--no-stablehlo", action="store_true", help="leave model.stablehlo out")
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    directory = existing_run(arguments.run_dir)
    prepare_jax()
    from looksam.trainer import export_run

    result = export_run(
        directory,
        arguments.out or directory / "export",
        checkpoint=arguments.checkpoint,
        stablehlo=not arguments.no_stablehlo,
        report=report,
    )
    if arguments.json:
        print_json(result)
    else:
        print(f"step {result['step']}, {result['parameters']:,} parameters: {', '.join(result['files'])}")
        print(result["out"], flush=True)
    return 0


COMMANDS = (
    Command("export", "write a trained model for PyTorch and others", DESCRIPTION, EXAMPLES, _add_arguments, _run),
)
