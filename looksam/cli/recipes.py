"""``looksam recipes``: what there is to train."""

import argparse
import dataclasses
import fnmatch

from looksam.arguments import did_you_mean
from looksam.cli.errors import UsageError
from looksam.cli.output import add_json, print_json
from looksam.cli.parser import Parser
from looksam.trainer.recipes import ALL, Listing

NAME = "recipes"
HELP = "list the recipes, with the paper's scores and the cost"
DESCRIPTION = """\
List the recipes: name, table of the paper, the paper's top-1 accuracy in percent, and hardware with time as the paper
has it (digits and desk: as measured here).
"""
EXAMPLES = """\
examples:
  looksam recipes
  looksam recipes cifar100              all with "cifar100" in the name
  looksam recipes "vit_*-look_sam-*"    by a pattern
  looksam recipes --json digits         with every setting, for machines
"""


def add_arguments(parser: Parser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="", help="part of a name, or a * pattern")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    found = matching(arguments.pattern)
    if arguments.json:
        print_json([{"name": name} | dataclasses.asdict(listing) for name, listing in found.items()])
    else:
        print("\n".join(table(found)))
    return 0


def matching(pattern: str) -> dict[str, Listing]:
    """The recipes with ``pattern`` in their names, or that match it where it has a wildcard."""
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = {name: listing for name, listing in ALL.items() if fnmatch.fnmatchcase(name, wanted)}
    if not found:
        raise UsageError(f"no recipe matches {pattern!r}{did_you_mean(pattern, ALL, 'looksam recipes lists all')}")
    return found


def table(listings: dict[str, Listing]) -> list[str]:
    """Lines of aligned columns, under a header."""
    head = ("name", "table", "paper", "hardware and time")
    rows = [(n, x.table, "-" if x.score is None else f"{x.score:.1f}", x.cost) for n, x in listings.items()]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(3)]
    return [f"{a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in (head, *rows)]
