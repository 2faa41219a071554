"""`looksam compare`: methods side by side on one recipe, the engine's smallest client.

``compare`` trains every method at its selected hyper-parameters and times its steps; ``tune`` selects ρ and α on a
validation split.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from looksam.experiments.engine.runner import CURVE_POINTS, SHARPNESS_RHO, Runner, curve_epochs
from looksam.experiments.engine.runs import Record, Run, Store, versions
from looksam.experiments.engine.side_by_side import Progress, SideBySide
from looksam.experiments.engine.tuner import Settings, best, grid_around, mean_scores, starting_settings
from looksam.experiments.experiment import mean_entry
from looksam.experiments.report.text import entry_text
from looksam.methods import parse_row, settings_of
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes.small import DIGITS_GRIDS, DIGITS_SELECTED
from looksam.trainer.rule_settings import gradients_per_step
from looksam.trainer.run_folder.run_directory import write_atomically

VERSION = 1  # of results.json and tuning.json
Report = Callable[[str], None]


def selected(name: str, recipe: Recipe, rows: list[str]) -> dict[str, Settings]:
    """The hyper-parameters tuned for the recipe of this name; where there are none, those to start from."""
    tuned, rho = DIGITS_SELECTED.get(name, {}), _sam_rho(name, recipe)
    return {
        row: (tuned.get(method) or starting_settings(recipe, method, rho)) | _named(row)
        for row, method in _rules(rows).items()
    }


def grids(name: str, recipe: Recipe, rows: list[str]) -> dict[str, list[Settings]]:
    """Eight settings per method, equal effort: those of the recipe of this name, or others around its own ρ."""
    known, rho = (DIGITS_GRIDS if name in DIGITS_SELECTED else {}), _sam_rho(name, recipe)
    return {
        row: [setting | _named(row) for setting in known.get(method) or grid_around(recipe, method, rho)]
        for row, method in _rules(rows).items()
    }


def _sam_rho(name: str, recipe: Recipe) -> float:
    """The ρ tuned for SAM on the recipe of this name; else the recipe's own."""
    return float(DIGITS_SELECTED.get(name, {}).get("sam", {}).get("rho", recipe.rho))


def _rules(rows: list[str]) -> dict[str, str]:
    """The method of each row, without the base optimizer, which is always trained."""
    methods = {row: parse_row(row).method for row in rows}
    return {row: method.name for row, method in methods.items() if method.is_rule}


def _named(row: str) -> Settings:
    """The settings that the name of a row specifies, such as k and start in ``look_sam_5@0.8``."""
    return {name: value for name, value in settings_of(row).items() if name != "method"}


def compare(
    recipe: Recipe,
    settings: dict[str, Settings],
    *,
    seeds: int,
    rounds: int = 20,
    store: Store | None = None,
    report: Report = print,
    progress: Progress = lambda title, done, total: None,
) -> dict[str, Any]:
    """Trains every method at its own settings and returns the results as plain numbers.

    Args:
      recipe: what all methods share.
      settings: the ρ, α and k of each method, by the name of its row. ``"base"`` is always trained.
      seeds: the number of runs of each method, from ``recipe.seed`` on.
      rounds: the number of rounds of interleaved timing.
      store: where finished runs are kept; those in it are not trained again.
      report: receives one line of text per method.
      progress: called with what is being done, the work done and all work of this call.
    """
    everything: dict[str, Settings] = {"base": {}} | settings
    recipes = {name: recipe.replace(**settings_of(name) | values) for name, values in everything.items()}
    runs = {
        name: [Run("compare", own.replace(seed=own.seed + i)) for i in range(seeds)] for name, own in recipes.items()
    }
    trainer = SideBySide(recipe, runs, store, progress)
    trainer.add_timing(rounds)
    results = {}
    for name, own in recipes.items():
        records, trained = trainer.records(name, CURVE_POINTS, _with_sharpness)
        outcome = {field: [record[field] for record in records] for field in ("sharpness_train", "sharpness_test")}
        curve = np.array([record["accuracy"] for record in records]).T
        gradients = gradients_per_step(own, trainer.runners[name].total_steps)
        results[name] = {
            "settings": everything[name],
            "gradients_per_step": gradients,
            "accuracy": curve[-1].tolist(),
            "curve": curve.tolist(),
            **outcome,
        }
        report(f"{name}: {entry_text(mean_entry(curve[-1]))} %{trainer.kept_text(seeds - trained)}")
    for name, quartiles in trainer.timed(rounds).items():
        results[name]["time_ratio"] = quartiles
    return {
        "version": VERSION,
        "recipe": recipe.to_dict(),
        "seeds": seeds,
        "curve_epochs": curve_epochs(recipe.epochs),
        "sharpness_rho": SHARPNESS_RHO,
        "methods": results,
        "versions": versions(),
    }


def _with_sharpness(runner: Runner) -> Record:
    """The sharpness at the end of training, of the runs that have just ended."""
    on_train, on_test = (runner.loss_and_sharpness(images)[1] for images in (runner.train, runner.test))
    return {"sharpness_train": on_train, "sharpness_test": on_test}


def tune(
    recipe: Recipe,
    grids: dict[str, list[Settings]],
    *,
    seeds: int,
    store: Store | None = None,
    report: Report = print,
    progress: Progress = lambda title, done, total: None,
) -> dict[str, Any]:
    """Selects, for each method, the setting of its grid with the best mean accuracy on a validation split.

    The split is taken from the training set, so the test set is not read. All settings and seeds of a small model train
    together. ``store`` and ``progress`` are those of ``compare``.
    """
    if not recipe.validation:
        raise ValueError("tuning needs a validation split; pass --validation, the share of the training set held out.")
    first = {name: recipe.replace(**settings_of(name)) for name in grids}
    runs = {
        name: [Run("select", first[name].replace(seed=recipe.seed + i, **s)) for s in grid for i in range(seeds)]
        for name, grid in grids.items()
    }
    trainer = SideBySide(recipe, runs, store, progress)
    results = {}
    for name, grid in grids.items():
        records, trained = trainer.records(name, 1, lambda runner: {})
        accuracy = np.array([record["accuracy"][-1] for record in records]).reshape(len(grid), seeds)
        for setting, values in zip(grid, accuracy.tolist(), strict=True):
            report(f"{name} {setting}: {entry_text(mean_entry(values))} %")
        chosen = grid[best(mean_scores(accuracy))]
        report(f"{name}: selected {chosen}{trainer.kept_text(len(records) - trained)}")
        results[name] = {"selected": chosen, "grid": grid, "accuracy": accuracy.tolist()}
    return {
        "version": VERSION,
        "recipe": recipe.to_dict(),
        "seeds": seeds,
        "methods": results,
        "versions": versions(),
    }


def write_results(path: pathlib.Path, results: dict[str, Any]) -> None:
    """Writes results.json or tuning.json, atomically."""
    write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())


def read_results(path: pathlib.Path) -> dict[str, Any]:
    """The content of results.json or tuning.json, by recipe. Raises ValueError for another version of the format."""
    results = json.loads(path.read_text())
    for name, result in results.items():
        version = result.get("version", "none")
        if version != VERSION:
            older = not isinstance(version, int) or version < VERSION
            fix = "run `looksam compare` again" if older else "install a newer looksam"
            message = f"has format version {version}, and this looksam reads version {VERSION}"
            raise ValueError(f"{path}: {name} {message}; {fix}.")
    return results
