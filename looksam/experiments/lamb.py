"""LAMB, +SAM, +LookSAM and +Look-LayerSAM on the desk ViT at growing batches: cells that four experiments share."""

from collections.abc import Iterator, Sequence

from looksam.experiments import desk
from looksam.experiments.store import Store
from looksam.experiments.study import Study, seeds_of, tuning_stages
from looksam.experiments.task import Task
from looksam.trainer.recipe import Recipe

BATCHES = (50, 400)  # 24 and 3 steps an epoch
SCALINGS = ("normalized", "literal", "adaptive")
LAYER = "look_layer_sam:normalized"  # the default reading
METHODS = ("base", "sam", "look_sam", *(f"look_layer_sam:{scaling}" for scaling in SCALINGS))


def studies(batches: Sequence[int] = BATCHES) -> dict[tuple[str, int], Study]:
    """By column and batch."""
    return {(c, batch): desk.lamb(noise, batch) for c, noise in desk.COLUMNS.items() for batch in batches}


def tuning(store: Store, batches: Sequence[int], methods: Sequence[str]) -> Iterator[list[Task]]:
    return tuning_stages(studies(batches).values(), store, methods)


def reported(recipes: Sequence[Recipe], seeds: int) -> list[Task]:
    return [task for recipe in recipes for task in seeds_of(recipe, seeds)]
