"""The paper's tables, as they are printed there: Liu et al., CVPR 2022."""

import csv
import functools
import importlib.resources

from looksam.trainer.recipe import Recipe

Row = dict[str, str]


@functools.cache
def table(name: str) -> tuple[Row, ...]:
    """The rows of ``paper_tables/<name>.csv``, each a dict from column to text."""
    path = importlib.resources.files("looksam.trainer.recipes") / "paper_tables" / f"{name}.csv"
    return tuple(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def number(name: str, column: str, **where: str) -> float | None:
    """What a table has in ``column`` of the row with these values; None where it has no such cell."""
    rows = [row for row in table(name) if all(row[key] == value for key, value in where.items())]
    text = rows[0].get(column) if rows else None
    return float(text) if text else None


def label(recipe: Recipe, base: str) -> str:
    """The tables' name of a recipe's method, with k where it has one: ``base``, sam, sam_5, look_sam_5, …"""
    names = {"base": base, "sam_k": f"sam_{recipe.k}", "look_sam": f"look_sam_{recipe.k}"}
    return names.get(recipe.method, recipe.method)
