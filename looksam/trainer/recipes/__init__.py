"""The recipes by name: those of the paper's tables, and small ones that train without an accelerator.

>>> from looksam.trainer import recipes
>>> listing = recipes.find("vit_b16-look_sam-5")
>>> listing.recipe.rho, listing.score, listing.cost
(0.18, 79.8, 'TPU pod, 70.5 s per epoch, 5.9 h')

To add a recipe, add it to the dictionary of its table in ``imagenet``, ``cifar`` or ``small``; a new table is one entry
of ``_TABLES``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from looksam.arguments import did_you_mean
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import cifar, imagenet, small

__all__ = ["ALL", "Listing", "find"]


@dataclass(frozen=True)
class Listing:
    """A recipe with its table, the paper's score and its cost."""

    recipe: Recipe
    table: str  # one of the paper's tables, digits, or small
    score: float | None  # top-1 accuracy in percent, as printed in the paper
    cost: str  # hardware and time, the paper's if it reports them


class _Table(NamedTuple):
    name: str
    recipes: dict[str, Recipe]
    score: Callable[[Recipe], float | None]
    cost: Callable[[Recipe], str]


# In the order in which `looksam recipes` lists them.
_TABLES = (
    _Table("digits", small.DIGITS_RECIPES, small.score, small.digits_cost),
    _Table("small", small.PHOTO_RECIPES, small.score, small.photo_cost),
    _Table("cifar100", cifar.RECIPES, cifar.score, cifar.cost),
    _Table("vit", imagenet.VIT_RECIPES, imagenet.vit_score, imagenet.vit_cost),
    _Table("large_batch", imagenet.LARGE_BATCH_RECIPES, imagenet.large_batch_score, imagenet.large_batch_cost),
    _Table("augment_64k", imagenet.AUGMENTED_RECIPES, imagenet.augmented_score, imagenet.augmented_cost),
)

ALL: dict[str, Listing] = {
    name: Listing(recipe, table.name, table.score(recipe), table.cost(recipe))
    for table in _TABLES
    for name, recipe in table.recipes.items()
}


def find(name: str) -> Listing:
    """Returns the listing of this name; raises ValueError, with similar names, if there is none."""
    if name not in ALL:
        raise ValueError(f"recipe {name!r} is unknown{did_you_mean(name, ALL, 'looksam recipes lists them')}")
    return ALL[name]
