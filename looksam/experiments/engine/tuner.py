"""Scores of settings, those that a method starts from or tries around a recipe, and the runs that are reported.

``engine/search.py`` tunes the methods of an experiment; ``looksam compare --tune`` tries the eight settings per method
of ``grid_around``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from looksam.experiments.engine.runs import Record, Run, Store
from looksam.methods import METHODS
from looksam.trainer.recipe import Recipe

Settings = dict[str, Any]


def mean_scores(accuracy: Sequence[Sequence[float]] | np.ndarray) -> list[float]:
    """The score of each setting: its mean accuracy over seeds."""
    return np.mean(np.asarray(accuracy), axis=-1).tolist()


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
