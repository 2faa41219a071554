"""``looksam recipes``: the recipes that come with the package."""

import argparse
import dataclasses
import fnmatch

from looksam.arguments import did_you_mean
from looksam.cli.output import UsageError, print_json
from looksam.cli.parser import Command, Parser, add_json
from looksam.trainer.recipes import ALL, Listing

DESCRIPTION = """\
List the recipes: name, table of the paper, the paper's top-1 accuracy in percent, and hardware with time as the paper
reports them (for the small recipes: as measured or estimated here).
"""
EXAMPLES = """\
examples:
  looksam recipes
  looksam recipes cifar100              all with "cifar100" in the name
  looksam recipes "vit_*-look_sam-*"    by a pattern
  looksam recipes --json digits         with every setting, for programs
"""


def _add_arguments(parser: Parser) -> None:
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="", help="part of a name, or a * pattern")
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    listings = matching(arguments.pattern)
    if arguments.json:
        print_json([{"name": name} | dataclasses.asdict(listing) for name, listing in listings.items()])
    else:
        print("\n".join(table(listings)))
    return 0


def matching(pattern: str) -> dict[str, Listing]:
    """The recipes whose names contain ``pattern``, or match it if it has a wildcard."""
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    listings = {name: listing for name, listing in ALL.items() if fnmatch.fnmatchcase(name, wanted)}
    if not listings:
        raise UsageError(f"no recipe matches {pattern!r}{did_you_mean(pattern, ALL, 'looksam recipes lists all')}")
    return listings


def table(listings: dict[str, Listing]) -> list[str]:
    """Aligned lines under a header. Not a Rich table: its import alone would double the time of this command."""
    head = ("name", "table", "paper", "hardware and time")
    rows = [(n, x.table, "-" if x.score is None else f"{x.score:.1f}", x.cost) for n, x in listings.items()]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(3)]
    return [f"{a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in (head, *rows)]


COMMANDS = (
    Command(
        "recipes",
        "list the recipes, with the paper's scores and the cost",
        DESCRIPTION,
        EXAMPLES,
        _add_arguments,
        _run,
    ),
)
