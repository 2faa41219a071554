"""The tuner: methods on one recipe, each tuned with equal effort on held-out images, then trained on fresh seeds.

Every method tries the same number of settings. The base optimizer spends them on the learning rate; the others try the
rate selected for it and a third of it, since sharpness-aware steps need smaller ones, with several ρ or α. A setting's
score is the mean accuracy on the held-out images over the tuning seeds, at the end of training. The reported runs have
other seeds, train on the same images as the tuning runs, and read the test set once, at the end. What is selected at
k = 5 is kept for other k.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from looksam.experiments.engine.runs import Record, Run, Store
from looksam.methods import METHODS, settings_of
from looksam.trainer.recipe import Recipe

TUNING_SEEDS = (100, 101)
Settings = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """The settings that each method tries on one recipe.

    A setting names its learning rate, or as ``of_base`` the share of the rate that is selected for the base.
    """

    recipe: Recipe  # what all methods share
    grids: Mapping[str, Sequence[Settings]]  # by method, "base" first

    def tuning(self, store: Store, method: str) -> list[list[Run]]:
        """For each setting of a method's grid, its runs."""
        recipes = [self.recipe.replace(**settings_of(method), **setting) for setting in self.settings(store, method)]
        return [[Run("tune", recipe.replace(seed=seed)) for seed in TUNING_SEEDS] for recipe in recipes]

    def settings(self, store: Store, method: str) -> list[Settings]:
        """The grid of a method, with the learning rates that follow from the one selected for the base optimizer."""
        if method == "base":
            return list(self.grids["base"])
        rate = self.selected(store, "base")["learning_rate"]
        return [_at_rate(setting, rate) for setting in self.grids[method]]

    def scores(self, store: Store, method: str) -> list[float] | None:
        """The mean held-out accuracy of each setting; None until all its runs, and those of the base, are stored."""
        key = self.recipe, method, repr(self.grids)
        if key not in store.derived:
            if method != "base" and self.scores(store, "base") is None:
                return None
            records = [[store.get(run) for run in runs] for runs in self.tuning(store, method)]
            if any(record is None for group in records for record in group):
                return None
            accuracy = [[record["validation_accuracy"][-1] for record in group if record] for group in records]
            store.derived[key] = mean_scores(accuracy)
        return store.derived[key]

    def selected(self, store: Store, method: str) -> Settings:
        """The setting with the best score; the first of its grid while the scores are not complete."""
        scores = self.scores(store, method)
        return self.settings(store, method)[best(scores) if scores else 0]

    def tuned(self, store: Store, row: str, **changes: Any) -> Recipe:
        """The recipe of a row, such as ``look_sam_10``, at the settings selected for its method, then changed."""
        settings = settings_of(row)
        method = row if row in self.grids else settings["method"]
        return self.recipe.replace(**self.selected(store, method)).replace(**settings).replace(**changes)

    def stages(self, store: Store, methods: Sequence[str]) -> Iterator[list[Run]]:
        """The tuning runs: first those of the base optimizer, whose learning rate the others need."""
        yield [run for runs in self.tuning(store, "base") for run in runs]
        yield [run for name in methods if name != "base" for runs in self.tuning(store, name) for run in runs]


def _at_rate(setting: Settings, rate: float) -> Settings:
    """Turns ``of_base``, a share of the base's rate, into a learning rate."""
    rest = {name: value for name, value in setting.items() if name != "of_base"}
    return rest | {"learning_rate": float(f"{rate * setting['of_base']:.4g}")}


def mean_scores(accuracy: Sequence[Sequence[float]] | np.ndarray) -> list[float]:
    """The score of each setting: its mean accuracy over seeds."""
    return np.mean(np.asarray(accuracy), axis=-1).tolist()


def best(scores: Sequence[float]) -> int:
    """The setting with the highest score, the first of several."""
    return int(np.argmax(scores))


def own_settings(recipe: Recipe, method: str) -> Settings:
    """The recipe's own values of what is tuned or varied in a method: ρ, and α and k where the method has them."""
    return {name: getattr(recipe, name) for name in ("rho", "alpha", "k") if name in METHODS[method].settings}


def starting_settings(recipe: Recipe, method: str, sam_rho: float) -> Settings:
    """Settings for a method that was not tuned: the recipe's own, or for another paper's method those to start from.

    ``sam_rho`` is a good ρ for SAM on the recipe.
    """
    own, described = own_settings(recipe, method), METHODS[method]
    if method == recipe.method or not described.is_related:
        return own
    middle = {"alpha": described.strengths[len(described.strengths) // 2]} if described.strengths else {}
    return own | {"rho": sam_rho * described.radius} | middle


def tuning_stages(studies: Iterable[Study], store: Store, methods: Sequence[str]) -> Iterator[list[Run]]:
    """The tuning runs of several studies, stage by stage together."""
    for parts in zip(*(study.stages(store, methods) for study in studies), strict=True):
        yield [run for part in parts for run in part]


def reported_runs(recipes: Iterable[Recipe], seeds: int) -> list[Run]:
    """The runs whose test accuracy is reported."""
    return [Run("train", recipe.replace(seed=seed)) for recipe in recipes for seed in range(seeds)]


def load_records(store: Store, runs: Sequence[Run]) -> list[Record]:
    """The stored records of these runs. Raises ValueError if one is missing."""
    records = [store.get(run) for run in runs]
    missing = [run for run, record in zip(runs, records, strict=True) if record is None]
    if missing:
        seeds = [run.recipe.seed for run in missing if run.key == missing[0].key]
        raise ValueError(f"seeds {seeds} of {missing[0].key} are not stored; run `looksam reproduce`.")
    return [record for record in records if record is not None]


def reported_records(store: Store, recipe: Recipe, seeds: int) -> list[Record]:
    """The records of a recipe's reported runs."""
    return load_records(store, reported_runs([recipe], seeds))


def accuracies(store: Store, recipe: Recipe, seeds: int) -> list[float]:
    """The test accuracies of a recipe's reported runs."""
    return [record["test_accuracy"] for record in reported_records(store, recipe, seeds)]
