"""The recipes by name: those of the paper's tables, small ones that train without an accelerator, and your own.

>>> from looksam.trainer import recipes
>>> listing = recipes.find("vit_b16-look_sam-5")
>>> listing.recipe.rho, listing.score, listing.cost
(0.18, 79.8, 'TPU pod, 70.5 s per epoch, 5.9 h')

To add a recipe, add it to the dictionary of its table in ``imagenet``, ``cifar`` or ``small``; a new table is one entry
of ``_TABLES``. Recipes of your own need no change here: ``find`` also takes the path of a recipe's file, and the name
of an entry point of ``looksam.recipes``.
"""

import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from looksam.arguments import did_you_mean
from looksam.trainer import own_code
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipe_files import is_recipe_file, read_recipe_file
from looksam.trainer.recipes import cifar, imagenet, own_images, small

__all__ = ["ALL", "Listing", "find", "is_code"]


@dataclass(frozen=True)
class Listing:
    """A recipe with its table, the paper's score, its cost, and where it comes from."""

    recipe: Recipe
    table: str  # one of the paper's tables, digits, small, own, file, or package
    score: float | None  # top-1 accuracy in percent, as printed in the paper
    cost: str  # hardware and time, the paper's if it reports them; "-" if unknown
    origin: str  # the module of this package, the file, or the installed package that defines it


class _Table(NamedTuple):
    name: str
    module: ModuleType
    recipes: dict[str, Recipe]
    score: Callable[[Recipe], float | None]
    cost: Callable[[Recipe], str]


# In the order in which `looksam recipes` lists them.
_TABLES = (
    _Table("digits", small, small.DIGITS_RECIPES, small.score, small.digits_cost),
    _Table("small", small, small.PHOTO_RECIPES, small.score, small.photo_cost),
    _Table("own", own_images, own_images.RECIPES, own_images.score, own_images.cost),
    _Table("cifar100", cifar, cifar.RECIPES, cifar.score, cifar.cost),
    _Table("vit", imagenet, imagenet.VIT_RECIPES, imagenet.vit_score, imagenet.vit_cost),
    _Table(
        "large_batch", imagenet, imagenet.LARGE_BATCH_RECIPES, imagenet.large_batch_score, imagenet.large_batch_cost
    ),
    _Table("augment_64k", imagenet, imagenet.AUGMENTED_RECIPES, imagenet.augmented_score, imagenet.augmented_cost),
)

ALL: dict[str, Listing] = {
    name: Listing(recipe, table.name, table.score(recipe), table.cost(recipe), table.module.__name__)
    for table in _TABLES
    for name, recipe in table.recipes.items()
}


def is_code(name: str) -> bool:
    """Returns whether ``find`` would run code from outside the package, which may import JAX."""
    return name not in ALL and (name.endswith(".py") or name in own_code.entry_points("recipes"))


def find(name: str) -> Listing:
    """Returns the listing of this name, or of a file; raises ValueError, with similar names, if there is none."""
    if name in ALL:
        return ALL[name]
    points = own_code.entry_points("recipes")
    if name in points:
        return Listing(_of_package(name), "package", None, "-", own_code.distribution(points[name]))
    if is_recipe_file(name):
        return Listing(read_recipe_file(name), "file", None, "-", str(pathlib.Path(name).absolute()))
    hint = did_you_mean(name, [*ALL, *points], "looksam recipes lists them; a file ends in .py, .toml or .json")
    raise ValueError(f"recipe {name!r} is unknown{hint}")


def _of_package(name: str) -> Recipe:
    recipe = own_code.load_entry_point("recipes", name)
    if not isinstance(recipe, Recipe):
        raise own_code.OwnCodeError(
            f"the entry point {name!r} of looksam.recipes is a {type(recipe).__name__}; name a looksam.trainer.Recipe."
        )
    return recipe
