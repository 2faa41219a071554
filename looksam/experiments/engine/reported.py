"""The runs whose test accuracy is reported, and their records: seeds 0, 1, … of a recipe."""

import math
from collections.abc import Iterable, Sequence

from looksam.experiments.engine.runs import Record, Run, Store
from looksam.trainer.recipe import Recipe


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


def finished_records(store: Store, recipe: Recipe, seeds: int) -> list[Record]:
    """The records of those reported runs of a recipe that are finished."""
    records = map(store.get, reported_runs([recipe], seeds))
    return [record for record in records if record is not None]


def numbers(records: Sequence[Record], name: str) -> list[float]:
    """One number of each run; NaN where it was not finite, for which None is stored."""
    return [math.nan if record[name] is None else record[name] for record in records]
