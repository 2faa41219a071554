"""The rows of the paper's tables on CIFAR-100 and of ViTs: base, SAM, SAM-k and LookSAM-k."""

from collections.abc import Iterator, Sequence

from looksam.experiments.store import Store
from looksam.experiments.study import Study, seeds_of, tuning_stages
from looksam.experiments.task import Task
from looksam.trainer.recipe import Recipe

METHODS = ("base", "sam", "sam_k", "look_sam")
PERIODS = (5, 10, 20)


def rows(study: Study, store: Store, periods: Sequence[int] = PERIODS) -> dict[str, Recipe]:
    """By the names of the paper's tables: base, sam, sam_5, look_sam_5, …"""
    recipes = {"base": study.tuned(store, "base"), "sam": study.tuned(store, "sam")}
    for k in periods:
        recipes[f"sam_{k}"] = study.tuned(store, "sam_k", k=k)
        recipes[f"look_sam_{k}"] = study.tuned(store, "look_sam", k=k)
    return recipes


def stages(studies: Sequence[Study], store: Store, seeds: int) -> Iterator[list[Task]]:
    """The tuning of all studies, then the runs that are reported."""
    yield from tuning_stages(studies, store, METHODS)
    yield [task for study in studies for recipe in rows(study, store).values() for task in seeds_of(recipe, seeds)]
