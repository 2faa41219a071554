"""The recipes: one module for each table of the paper, and two for a desk.

>>> from looksam import recipes
>>> listing = recipes.find("vit_b16-look_sam-5")
>>> listing.recipe.rho, listing.score, listing.cost
(0.18, 79.8, 'TPU pod, 70.5 s an epoch, 5.9 h')
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from looksam.arguments import did_you_mean
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import augment_64k, cifar100, desk, digits, large_batch, vit

__all__ = ["ALL", "Listing", "find"]


@dataclass(frozen=True)
class Listing:
    """A recipe and what is known of it."""

    recipe: Recipe
    table: str  # the module it is in: one of the paper's tables, or digits or desk
    score: float | None  # top-1 accuracy in percent, as the paper has it
    cost: str  # hardware and time, the paper's where it has them


def _listings() -> Iterator[tuple[str, Listing]]:
    modules: tuple[Any, ...] = (digits, desk, cifar100, vit, large_batch, augment_64k)
    for module in modules:
        table = module.__name__.rpartition(".")[2]
        for name, recipe in module.RECIPES.items():
            yield name, Listing(recipe, table, module.score(recipe), module.cost(recipe))


ALL: dict[str, Listing] = dict(_listings())


def find(name: str) -> Listing:
    """The listing of this name. Raises ValueError, with the did_you_mean names, where there is none."""
    if name not in ALL:
        raise ValueError(f"recipe {name!r} is unknown{did_you_mean(name, ALL, 'looksam recipes lists them')}")
    return ALL[name]
