"""The tables of the paper, Liu et al., CVPR 2022: their printed numbers, and the recipes and names of their rows."""

import csv
import functools
import importlib.resources
from collections.abc import Sequence

from looksam.methods import METHODS, parse_row
from looksam.trainer.recipe import Recipe

Row = dict[str, str]


@functools.cache
def table(name: str) -> tuple[Row, ...]:
    """Returns the rows of ``paper_tables/<name>.csv``, each a dict from column to text."""
    path = importlib.resources.files("looksam.trainer.recipes") / "paper_tables" / f"{name}.csv"
    return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def number(name: str, column: str, **where: str) -> float | None:
    """Returns the number in ``column`` of the row with these values, or None if the table has no such entry."""
    rows = [row for row in table(name) if all(row[key] == value for key, value in where.items())]
    text = rows[0].get(column) if rows else None
    return float(text) if text else None


def paper_row(row: str, optimizer: str) -> str:
    """Returns a row's name in the paper's tables: the base by its optimizer, methods on LAMB after a plus.

    >>> paper_row("base", "sgdm"), paper_row("look_sam_5", "adamw"), paper_row("layer_sam", "lamb")
    ('sgd_m', 'look_sam_5', 'lamb+layer_sam')
    """
    method = parse_row(row).method
    if method is METHODS["base"]:
        return {"sgdm": "sgd_m"}.get(optimizer, optimizer)
    return f"lamb+{method.name}" if optimizer == "lamb" else row


def row_of(recipe: Recipe) -> str:
    """Returns the name of the recipe's row in the paper's tables, e.g. ``sam_5``."""
    return paper_row(METHODS[recipe.method].row_name(recipe.k), recipe.optimizer)


def recipes_by_method(settings: Recipe, methods: Sequence[str], periods: Sequence[int]) -> dict[str, Recipe]:
    """Returns ``settings`` with each method, and each period for methods that have one: ``sam``, ``look_sam-5``, ..."""
    periodic = [name for name in methods if METHODS[name].has_period]
    recipes = {name: settings.replace(method=name) for name in methods if name not in periodic}
    return recipes | {f"{name}-{k}": settings.replace(method=name, k=k) for k in periods for name in periodic}


def gradients_per_step(recipe: Recipe) -> str:
    """Returns the cost of a step in words, e.g. ``1.2 gradients per step``."""
    count = METHODS[recipe.method].gradients_per_step(recipe.k)
    return f"{count:g} gradient{'s' if count > 1 else ''} per step"
