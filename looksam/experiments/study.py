"""Methods on one recipe, each tuned with equal effort on held-out images, then trained on fresh seeds.

Every method tries the same number of settings. The base optimizer spends them on the learning rate; the others try the
rate it picks and a third of it, since sharp steps need smaller ones, with several ρ or α. A setting's score is the mean
accuracy on the held-out images over the tuning seeds, at the end of training. The runs that are reported have other
seeds, train on the same images as the tuning runs, and read the test set once, at the end. What is picked at k = 5 is
kept for other k.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from looksam.experiments.store import Record, Store
from looksam.experiments.task import Task
from looksam.trainer.recipe import Recipe

TUNING_SEEDS = (100, 101)
Settings = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """``recipe`` says what all methods share; ``grids`` the tried settings of each, ``"base"`` first."""

    recipe: Recipe
    grids: Mapping[str, Sequence[Settings]]

    def tuning(self, store: Store, method: str) -> list[list[Task]]:
        """For each setting of a method's grid, its runs."""
        recipes = [self.recipe.replace(**name_of(method), **setting) for setting in self.settings(store, method)]
        return [[Task("tune", recipe.replace(seed=seed)) for seed in TUNING_SEEDS] for recipe in recipes]

    def settings(self, store: Store, method: str) -> list[Settings]:
        """The grid of a method, with the learning rates that follow from the base optimizer's pick."""
        if method == "base":
            return list(self.grids["base"])
        rate = self.pick(store, "base")["learning_rate"]
        return [_at_rate(setting, rate) for setting in self.grids[method]]

    def scores(self, store: Store, method: str) -> list[float] | None:
        """The mean held-out accuracy of each setting; None until all are there, and the base's, on which they rest."""
        name = self.recipe, method, repr(self.grids)
        if name not in store.final:
            if method != "base" and self.scores(store, "base") is None:
                return None
            found = [[store.get(task) for task in tasks] for tasks in self.tuning(store, method)]
            if any(record is None for records in found for record in records):
                return None
            means = [np.mean([r["validation_accuracy"][-1] for r in records if r]) for records in found]
            store.final[name] = [float(mean) for mean in means]
        return store.final[name]

    def pick(self, store: Store, method: str) -> Settings:
        """The setting with the best score; the first of its grid while that is not known."""
        scores = self.scores(store, method)
        return self.settings(store, method)[int(np.argmax(scores)) if scores else 0]

    def tuned(self, store: Store, method: str, **changes: Any) -> Recipe:
        """The recipe of a method at its pick, with changes that were not tuned for, such as k."""
        return self.recipe.replace(**name_of(method), **self.pick(store, method)).replace(**changes)

    def stages(self, store: Store, methods: Sequence[str]) -> Iterator[list[Task]]:
        """The tuning runs: first the base optimizer's, on which the others rest."""
        yield [task for tasks in self.tuning(store, "base") for task in tasks]
        yield [task for name in methods if name != "base" for tasks in self.tuning(store, name) for task in tasks]


def tuning_stages(studies: Iterable[Study], store: Store, methods: Sequence[str]) -> Iterator[list[Task]]:
    """The tuning runs of several studies, stage by stage together."""
    for parts in zip(*(study.stages(store, methods) for study in studies), strict=True):
        yield [task for part in parts for task in part]


def _at_rate(setting: Settings, rate: float) -> Settings:
    """``of_base``, a share of the base's rate, becomes a learning rate."""
    rest = {name: value for name, value in setting.items() if name != "of_base"}
    return rest | {"learning_rate": float(f"{rate * setting['of_base']:.4g}")}


def name_of(method: str) -> Settings:
    """The settings that make a method: ``look_layer_sam:literal`` is look_layer_sam with that scaling."""
    name, _, scaling = method.partition(":")
    return {"method": name} | ({"scaling": scaling} if scaling else {})


def seeds_of(recipe: Recipe, seeds: int) -> list[Task]:
    """The runs that are reported."""
    return [Task("train", recipe.replace(seed=seed)) for seed in range(seeds)]


def found(store: Store, recipe: Recipe, seeds: int) -> list[Record]:
    """Their records, all of them."""
    records = [store.get(task) for task in seeds_of(recipe, seeds)]
    missing = [i for i, record in enumerate(records) if record is None]
    if missing:
        raise ValueError(f"seeds {missing} of {seeds_of(recipe, 1)[0].key} are not there; run `looksam reproduce`.")
    return [record for record in records if record]


def accuracies(store: Store, recipe: Recipe, seeds: int) -> list[float]:
    return [record["test_accuracy"] for record in found(store, recipe, seeds)]
