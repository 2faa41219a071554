"""Full scale: the paper's recipes, unchanged. They are trained where the hardware is, or compiled and reckoned."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from looksam import recipes
from looksam.experiments.made import made_by
from looksam.experiments.registry import Experiment
from looksam.report.section import Entry, Section, Table, Value
from looksam.train.recipe import Recipe


def full_recipes(experiment: Experiment, **changes: Any) -> dict[str, tuple[Recipe, float | None]]:
    """By name, with the paper's score where it prints one. ``changes`` say how the work is spread, not what it is."""
    found: dict[str, tuple[Recipe, float | None]] = {}
    for name in experiment.FULL:
        entry = recipes.find(name)
        moved: tuple[dict[str, Any], ...] = getattr(experiment, "FULL_SETTINGS", ({},))
        for extra in moved:
            label = name + "".join(f"-{key}-{value:g}" for key, value in extra.items())
            recipe = entry.recipe.replace(**extra, **changes)
            found[label] = recipe, entry.score if recipe == entry.recipe.replace(**changes) else None
    return found


def planned(experiment: Experiment, **changes: Any) -> dict[str, Recipe]:
    """One recipe for each model, batch and augmentation; the plan of a look rule has base and SAM too."""
    best: dict[Any, tuple[str, Recipe]] = {}
    order = ("base", "sam", "sam_k", "layer_sam", "look_sam", "look_layer_sam")
    for name, (recipe, _) in full_recipes(experiment, **changes).items():
        key = recipe.replace(method="base", rho=0.0, alpha=0.0, k=1)
        if key not in best or order.index(recipe.method) > order.index(best[key][1].method):
            best[key] = name, recipe
    return dict(best.values())


def train(experiment: Experiment, seeds: int, out: pathlib.Path, say: Callable[[str], None], **changes: Any) -> Section:
    """Train every recipe on every seed: runs of `looksam train` with checkpoints, which go on by themselves."""
    from looksam.train.loop import run

    rows: list[tuple[Entry, ...]] = []
    scores: dict[str, list[float]] = {}
    for name, (recipe, score) in full_recipes(experiment, **changes).items():
        for seed in range(seeds):
            say(f"{name}, seed {seed}")
            result = run(recipe.replace(seed=seed), out / "runs" / f"{name}-seed{seed}")
            scores.setdefault(name, []).append(result["test_accuracy"])
        error = float(np.std(scores[name], ddof=1) / np.sqrt(seeds)) if seeds > 1 else None
        paper = None if score is None else Value(score, digits=1)
        rows.append((name, Value(float(np.mean(scores[name])), error), paper))
    source = made_by() | {"scale": "full", "seeds": seeds}
    (out / "full.json").write_text(json.dumps(source | {"test_accuracy": scores}) + "\n")
    table = Table("Test accuracy in %", ("recipe", "ours", "paper"), rows)
    about = {name: value for name, value in source.items() if name != "versions"}
    return Section(experiment.NAME, experiment.TITLE, experiment.QUESTION, (), [table], source=about)
