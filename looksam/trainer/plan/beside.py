"""The paper's measured times, to stand beside an estimate."""

from collections.abc import Iterable
from dataclasses import dataclass

from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables as paper
from looksam.trainer.recipes.imagenet import IMAGES_PER_CHIP, LARGE_BATCH_SETTINGS

VIT_BATCH = 4096  # of the paper's table of ViTs with AdamW
EPOCHS = 300  # in both tables


@dataclass(frozen=True)
class Measured:
    """The paper's hours of a run of 300 epochs."""

    batch_size: int
    chips: int | None  # TPU v3 chips; None where the paper does not name the number
    hours: dict[str, float | None]  # by method; None where the paper has no such cell

    @property
    def ratios(self) -> dict[str, float | None]:
        """To base."""
        base = self.hours.get("base")
        return {method: hours / base if hours and base else None for method, hours in self.hours.items()}


def measured(recipe: Recipe, methods: Iterable[str]) -> list[Measured]:
    """At the recipe's batch; and if base is not there, also at the smallest batch where it is. Empty if not at all."""
    methods = list(methods)
    if recipe.dataset != "imagenet":
        return []
    if recipe.model == "vit_b16" and recipe.optimizer == "lamb":
        rows = [_large_batch(batch, methods) for batch in dict.fromkeys((recipe.batch_size, *LARGE_BATCH_SETTINGS))]
    elif recipe.optimizer == "adamw" and recipe.batch_size == VIT_BATCH:
        rows = [_vit(recipe, methods)]
    else:
        rows = []
    here = [row for row in rows[:1] if any(row.hours.values())]
    whole = [row for row in rows if all(row.hours.values())]
    return here if here and here[0].hours.get("base") else here + whole[:1]


def _large_batch(batch: int, methods: list[str]) -> Measured:
    names = {method: "lamb" if method == "base" else f"lamb+{method}" for method in methods}
    hours = {method: paper.number("time_hours", str(batch), method=name) for method, name in names.items()}
    return Measured(batch, batch // IMAGES_PER_CHIP, hours)


def _vit(recipe: Recipe, methods: list[str]) -> Measured:
    hours: dict[str, float | None] = {}
    for method in methods:
        name = paper.row_name(recipe.replace(method=method), recipe.optimizer)
        found = paper.number("vit", "seconds_per_epoch", model=recipe.model, method=name)
        hours[method] = None if found is None else found * EPOCHS / 3600
    return Measured(VIT_BATCH, None, hours)
