"""`looksam compare`: methods side by side on one recipe, the engine's smallest client.

``compare`` trains every method at its selected hyper-parameters and times its steps; ``tune`` selects them on a
validation split.
"""

import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from looksam.experiments.engine.runner import CURVE_POINTS, SHARPNESS_RHO, Runner, curve_epochs
from looksam.experiments.engine.runs import Record, Run, Store, versions
from looksam.experiments.engine.search import Settings, line_search, settings_at
from looksam.experiments.engine.side_by_side import Progress, SideBySide
from looksam.experiments.experiment import mean_entry
from looksam.experiments.report.text import entry_text
from looksam.methods import METHODS, parse_row, settings_of
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes.small import DIGITS_RECIPES, DIGITS_SELECTED, DIGITS_STARTS
from looksam.trainer.rule_settings import gradients_per_step
from looksam.trainer.run_folder.run_directory import write_atomically

VERSION = 1  # of results.json and tuning.json
OF_OPTIMIZER = ("learning_rate", "weight_decay")
STRENGTHS = ("weight_decay", "rho", "alpha")  # how much a method regularises
# As in engine/search.py: where all regularise too much together, a line over the learning rate would end far below.
SEARCHED = (*STRENGTHS, "learning_rate")
START_RATES, START_STRENGTHS = (1.0, 0.1), (1.0, 0.25)  # times the values of a recipe: four searches start there
Report = Callable[[str], None]


def selected(name: str, recipe: Recipe, rows: list[str]) -> dict[str, Settings]:
    """The hyper-parameters tuned for the recipe of this name; where there are none, those to start from.

    A recipe that was given another optimizer, learning rate or weight decay keeps its own rate and decay.
    """
    tuned = DIGITS_SELECTED.get(name, {})
    if tuned and not _has_listed_optimizer(name, recipe):
        tuned = {method: _of_rule(settings) for method, settings in tuned.items()}
    rho = float(tuned.get("sam", {}).get("rho", recipe.rho))
    rules = {
        row: (tuned.get(method) or starting_settings(recipe, method, rho)) | _named(row)
        for row, method in _rules(rows).items()
    }
    return {"base": tuned.get("base", {})} | rules


def _has_listed_optimizer(name: str, recipe: Recipe) -> bool:
    listed = DIGITS_RECIPES[name]
    return all(getattr(recipe, setting) == getattr(listed, setting) for setting in ("optimizer", *OF_OPTIMIZER))


def _of_rule(settings: Settings) -> Settings:
    return {name: value for name, value in settings.items() if name not in OF_OPTIMIZER}


def starts(name: str, recipe: Recipe, rows: list[str]) -> dict[str, Settings]:
    """Where the searches of each method start: the recipe's learning rate and weight decay, and its own ρ, α and k.

    The recipes that were tuned have starts of their own, for the same search again; other values that a recipe was
    given come first.
    """
    if name in DIGITS_STARTS:
        listed, start = DIGITS_RECIPES[name], DIGITS_STARTS[name]
        recipe = recipe.replace(**{k: v for k, v in start.items() if getattr(recipe, k) == getattr(listed, k)})
    shared = {setting: value for setting in OF_OPTIMIZER if (value := getattr(recipe, setting))}
    rules = {
        row: shared | starting_settings(recipe, method, recipe.rho) | _named(row)
        for row, method in _rules(rows).items()
    }
    return {"base": shared} | rules


def starting_settings(recipe: Recipe, method: str, sam_rho: float) -> Settings:
    """Settings for a method that was not tuned: the recipe's own ρ, and α and k where the method has them.

    Another paper's method, whose scales differ, starts from values that follow from ``sam_rho``, a good ρ for SAM on
    the recipe.
    """
    described = METHODS[method]
    own: Settings = {name: getattr(recipe, name) for name in ("rho", "alpha", "k") if name in described.settings}
    if method == recipe.method or not described.is_related:
        return own
    middle = {"alpha": described.strengths[len(described.strengths) // 2]} if described.strengths else {}
    return own | {"rho": sam_rho * described.radius} | middle


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
      settings: each method's hyper-parameters, by the name of its row. ``"base"`` is always trained.
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
    starts: dict[str, Settings],
    *,
    seeds: int,
    store: Store | None = None,
    report: Report = print,
    progress: Progress = lambda title, done, total: None,
) -> dict[str, Any]:
    """Selects each method's learning rate, weight decay, ρ and α by their mean accuracy on a validation split.

    The best of four line searches, as in the experiments (``engine/search.py``): from ``starts``, from a tenth of its
    learning rate, and from both with a quarter of its ρ, α and weight decay. Accuracy may have several maxima: a small
    rate regularises too, and so does a large weight decay. Every method, the base too, has as many searches, and no
    selected value is at the edge of those tried; what is 0 at the start stays 0. The split is taken from the training
    set, so the test set is not read. All settings and seeds of a round train together, if the model is small. ``store``
    and ``progress`` are those of ``compare``.
    """
    if not recipe.validation:
        raise ValueError("tuning needs a validation split; pass --validation, the share of the training set held out.")

    def runs_of(row: str, settings: list[Settings]) -> list[Run]:
        shared = recipe.replace(**settings_of(row))
        return [Run("select", shared.replace(seed=recipe.seed + i, **s)) for s in settings for i in range(seeds)]

    trainer = SideBySide(recipe, {row: runs_of(row, [start]) for row, start in starts.items()}, store, progress)

    def search(row: str, start: Settings) -> tuple[Settings, dict[str, tuple[Settings, list[float]]]]:
        """The best settings, and all that were tried with the accuracies of their seeds."""
        searched = {name: start[name] for name in SEARCHED if start.get(name, 0) > 0}
        tried: dict[str, tuple[Settings, list[float]]] = {}
        setting = lambda point: start | settings_at(searched, point)
        score = lambda point: float(np.mean(tried[key][1])) if (key := str(setting(point))) in tried else None
        while not (trace := line_search(len(searched), score)).complete:
            new = [found for point in trace.points if str(found := setting(point)) not in tried]
            trainer.replace_runs(row, runs_of(row, new))
            records, _ = trainer.records(row, 1, lambda runner: {})
            accuracy = np.array([record["accuracy"][-1] for record in records]).reshape(len(new), seeds)
            for found, values in zip(new, accuracy.tolist(), strict=True):
                tried[str(found)] = found, values
                report(f"{row} {found}: {entry_text(mean_entry(values))} %")
        return setting(trace.best), tried

    results = {}
    for row, start in starts.items():
        tried: dict[str, tuple[Settings, list[float]]] = {}
        ends = []
        for rate, strength in itertools.product(START_RATES, START_STRENGTHS):
            weaker = {name: start[name] * strength for name in STRENGTHS if name in start}
            end, found = search(row, start | weaker | {"learning_rate": start["learning_rate"] * rate})
            ends.append(end)
            tried |= found
        chosen = max(ends, key=lambda end: float(np.mean(tried[str(end)][1])))
        report(f"{row}: selected {chosen}")
        grid, accuracy = ([pair[i] for pair in tried.values()] for i in range(2))
        results[row] = {"selected": chosen, "grid": grid, "accuracy": accuracy}
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
