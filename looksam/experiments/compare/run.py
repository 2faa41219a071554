"""Compare methods on one recipe, or pick each method's ρ and α on a validation split."""

import math
import platform
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import looksam
from looksam.experiments.compare.sweep import SHARPNESS_RHO, Sweep, curve_epochs
from looksam.experiments.compare.timing import time_ratios
from looksam.experiments.report.comparison import mean_and_error
from looksam.trainer.batches import load
from looksam.trainer.data import Dataset
from looksam.trainer.optimizers import gradients_per_step
from looksam.trainer.recipe import Recipe
from looksam.trainer.training import make_model

CURVE_POINTS = 10
LANE_LIMIT = 150_000  # parameters; larger models train one seed at a time, to bound the memory
Say = Callable[[str], None]


def compare(
    recipe: Recipe, settings: dict[str, dict[str, Any]], *, seeds: int, rounds: int = 20, say: Say = print
) -> dict[str, Any]:
    """Train every method at its own settings; what comes out, as plain numbers.

    Args:
      recipe: what all methods share.
      settings: method to its ρ, α and k. ``"base"`` is always trained.
      seeds: runs of each method, from ``recipe.seed`` on.
      rounds: of interleaved timing.
      say: gets a line of text as each method is done.
    """
    dataset = load(recipe)
    together = seeds if parameter_count(recipe, dataset) <= LANE_LIMIT else 1
    sweeps, results = {}, {}
    everything: dict[str, dict[str, Any]] = {"base": {}} | settings
    for name, chosen in everything.items():
        own = recipe.replace(method=name, **chosen)
        sweeps[name] = Sweep(own, dataset)
        lanes, parts = [own.replace(seed=own.seed + i) for i in range(seeds)], []
        for first in range(0, seeds, together):
            curve = sweeps[name].start(lanes[first : first + together]).run(CURVE_POINTS)
            rises = (sweeps[name].loss_and_rise(images)[1] for images in (sweeps[name].train, sweeps[name].test))
            parts.append((curve, *rises))
        curve, sharp_train, sharp_test = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
        results[name] = {
            "settings": chosen,
            "gradients_per_step": gradients_per_step(own),
            "accuracy": curve[-1].tolist(),
            "curve": curve.tolist(),
            "sharpness_train": sharp_train.tolist(),
            "sharpness_test": sharp_test.tolist(),
        }
        say(f"{name}: {mean_and_error(curve[-1], 2)} %")
    for name, quartiles in time_ratios(sweeps, rounds).items():
        results[name]["time_ratio"] = quartiles
    return {
        "recipe": recipe.to_dict(),
        "seeds": seeds,
        "curve_epochs": curve_epochs(recipe.epochs, CURVE_POINTS),
        "sharpness_rho": SHARPNESS_RHO,
        "methods": results,
        "versions": versions(),
    }


def tune(recipe: Recipe, grids: dict[str, list[dict[str, Any]]], *, seeds: int, say: Say = print) -> dict[str, Any]:
    """For each method, the setting of its grid with the best mean accuracy on a validation split.

    The split comes out of the training set, so the test set is not read. All settings and seeds train together.
    """
    if not recipe.validation:
        raise ValueError("tuning needs a validation split; pass --validation, the share of the training set held out.")
    dataset = load(recipe)
    results = {}
    for name, grid in grids.items():
        own = recipe.replace(method=name, **{k: v for k, v in grid[0].items() if k == "k"})
        lanes = [own.replace(seed=own.seed + i, **setting) for setting in grid for i in range(seeds)]
        scores = Sweep(own, dataset).start(lanes).run(1)[-1].reshape(len(grid), seeds)
        best = int(np.argmax(scores.mean(axis=1)))
        for setting, score in zip(grid, scores, strict=True):
            say(f"{name} {setting}: {mean_and_error(score, 2)} %")
        say(f"{name} picks {grid[best]}")
        results[name] = {"pick": grid[best], "grid": grid, "accuracy": scores.tolist()}
    return {"recipe": recipe.to_dict(), "seeds": seeds, "methods": results, "versions": versions()}


def parameter_count(recipe: Recipe, dataset: Dataset) -> int:
    params, _ = jax.eval_shape(make_model(recipe, dataset).init, jax.random.key(0))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(params))


def versions() -> dict[str, str]:
    python = platform.python_version()
    return {"looksam": looksam.__version__, "jax": jax.__version__, "optax": optax.__version__, "python": python}
