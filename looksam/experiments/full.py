"""Full scale: the paper's recipes, unchanged. They are trained where the hardware is, or compiled and reckoned."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from looksam.experiments.entries import printed
from looksam.experiments.made import made_by
from looksam.experiments.registry import Experiment
from looksam.experiments.report.document import Entry, Section, Table, Value
from looksam.trainer import recipes
from looksam.trainer.recipe import Recipe

ORDER = ("base", "sam", "sam_k", "layer_sam", "look_sam", "look_layer_sam")  # the plan of a later one has more in it


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A run was told to stop by ``signal``; it is saved, and the same command goes on."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


def full_recipes(experiment: Experiment, **changes: Any) -> dict[str, tuple[Recipe, float | None]]:
    """By name, with the paper's score where it prints one. ``changes`` say how the work is spread, not what it is."""
    found: dict[str, tuple[Recipe, float | None]] = {}
    for name in experiment.FULL:
        entry, recipe = recipes.find(name), _changed(name, changes)
        if not hasattr(experiment, "FULL_SETTINGS"):
            found[name] = recipe, entry.score
            continue
        for extra in experiment.FULL_SETTINGS:
            label = name + "".join(f"-{key}-{value:g}" for key, value in extra.items())
            moved = recipe.replace(**extra)
            found[label] = moved, experiment.full_score(moved)  # type: ignore[attr-defined]
    return found


def _changed(name: str, changes: dict[str, Any]) -> Recipe:
    recipe = recipes.find(name).recipe.replace(**changes)
    return recipe if recipe.dataset == "cifar100" else recipe.replace(download=False)  # no other has a download


def planned(experiment: Experiment, **changes: Any) -> dict[str, Recipe]:
    """One recipe for each model, batch and augmentation; the plan of a look rule has base and SAM too."""
    best: dict[Any, tuple[str, Recipe]] = {}
    for name in experiment.FULL:
        recipe = _changed(name, changes)
        key = recipe.replace(method="base", rho=0.0, alpha=0.0, k=1)
        if key not in best or ORDER.index(recipe.method) > ORDER.index(best[key][1].method):
            best[key] = name, recipe
    return dict(best.values())


def train(
    experiment: Experiment, seeds: int, out: pathlib.Path, say: Callable[[str], None], **changes: Any
) -> tuple[Section, dict[str, Any]]:
    """Train every recipe on every seed: runs of `looksam train` with checkpoints, which go on by themselves.

    What came out for people, and as numbers.
    """
    rows: list[tuple[Entry, ...]] = []
    scores: dict[str, list[float]] = {}
    for name, (recipe, score) in full_recipes(experiment, **changes).items():
        scores[name] = [_run(name, recipe.replace(seed=seed), out / "runs", say) for seed in range(seeds)]
        error = float(np.std(scores[name], ddof=1) / np.sqrt(seeds)) if seeds > 1 else None
        rows.append((name, Value(float(np.mean(scores[name])), error), printed(score)))
    source = made_by() | {"scale": "full", "seeds": seeds}
    table = Table("Test accuracy in %", ("recipe", "ours", "paper"), rows)
    about = {name: value for name, value in source.items() if name != "versions"}
    section = Section(experiment.NAME, experiment.TITLE, experiment.QUESTION, (), [table], source=about)
    return section, source | {"test_accuracy": scores}


def _run(name: str, recipe: Recipe, folder: pathlib.Path, say: Callable[[str], None]) -> float:
    """The test accuracy of one run."""
    from looksam.trainer.loop import run

    say(f"{name}, seed {recipe.seed}")
    result = run(recipe, folder / f"{name}-seed{recipe.seed}", report=say)
    if result["status"] != "finished":
        raise Stopped(int(result["signal"]))
    return result["test_accuracy"]
