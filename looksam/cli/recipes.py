"""``looksam recipes``: the recipes that come with the package, and those of installed packages and of files."""

import argparse
import dataclasses
import fnmatch
import json
import math
from collections.abc import Sequence
from typing import Any

from looksam.arguments import did_you_mean
from looksam.cli.environment import prepare_jax
from looksam.cli.output import UsageError, print_json
from looksam.cli.parser import Command, Parser, add_json
from looksam.trainer import own_code
from looksam.trainer.recipe import Recipe, differences
from looksam.trainer.recipe_files import is_recipe_file
from looksam.trainer.recipes import ALL, Listing, find, is_code

DESCRIPTION = """\
List the recipes: name, table of the paper, the paper's top-1 accuracy in percent, and hardware with time as the paper
reports them (for the small recipes: as measured or estimated here). For the name of a recipe, or a file, also where it
comes from and its settings, which are a recipe of your own once they are in a .toml file.
"""
EXAMPLES = """\
examples:
  looksam recipes
  looksam recipes cifar100              all with "cifar100" in the name
  looksam recipes digits > my.toml      the settings of a recipe, to change and train with
  looksam recipes "vit_*-look_sam-*"    by a pattern
  looksam recipes --json digits         with every setting, for programs
"""


def _add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "pattern", metavar="PATTERN", nargs="?", default="", help="(part of) a name, * pattern, or file"
    )
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    names = matching(arguments.pattern)
    if arguments.json:
        listings = {name: _find(name) for name in names}
        print_json([{"name": name} | dataclasses.asdict(listing) for name, listing in listings.items()])
    elif arguments.pattern in names:
        print("\n".join(settings(arguments.pattern, _find(arguments.pattern))))
    else:
        print("\n".join(table(names)))
    return 0


def matching(pattern: str) -> list[str]:
    """The names of recipes that contain ``pattern``, or match it if it has a wildcard; a file by its path."""
    names = [*ALL, *own_code.entry_points("recipes")]
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = [name for name in names if fnmatch.fnmatchcase(name, wanted)]
    if not found and is_recipe_file(pattern):
        return [pattern]
    if not found:
        raise UsageError(f"no recipe matches {pattern!r}{did_you_mean(pattern, names, 'looksam recipes lists all')}")
    return found


def _find(name: str) -> Listing:
    if is_code(name):
        prepare_jax()
    return find(name)


def settings(name: str, listing: Listing) -> list[str]:
    """The settings of one recipe, those that differ from the defaults, as TOML, under where they come from."""
    paper = "" if listing.score is None else f"; {listing.score:.1f} % in the paper"
    cost = "" if listing.cost == "-" else f"; {listing.cost}"
    changed = differences(listing.recipe, Recipe())
    return [
        f"# {name}, from {listing.origin}{paper}{cost}",
        *(f"{key} = {toml(ours)}" for key, (ours, _) in changed.items()),
    ]


def toml(value: Any) -> str:
    """A setting's value as TOML writes it."""
    return "inf" if value == math.inf else json.dumps(value)


def table(names: Sequence[str]) -> list[str]:
    """Aligned lines under a header. Not a Rich table: its import alone would double the time of this command."""
    head = ("name", "table", "paper", "hardware and time")
    rows = [(name, *_row(name)) for name in names]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(3)]
    return [f"{a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in (head, *rows)]


def _row(name: str) -> tuple[str, str, str]:
    if name not in ALL:  # of an installed package, which is not imported for a list
        return "package", "-", own_code.distribution(own_code.entry_points("recipes")[name])
    listing = ALL[name]
    return listing.table, "-" if listing.score is None else f"{listing.score:.1f}", listing.cost


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
