"""Runs that were never trained, for the tests of reports: their accuracies are a known function of recipe and seed."""

import math
from dataclasses import dataclass, field

from looksam.experiments import small_scale
from looksam.experiments.engine import pool
from looksam.methods import METHODS, parse_row

SEEDS = 3
JITTER = {0: -0.2, 1: 0.1, 2: 0.1}  # of seeds: mean 0, standard deviation √0.03, standard error 0.1
ERROR = 0.1


def _best(starts):
    """The learning rate is twice the start of the base's, for all rows; ρ is twice its start, and half of it at k = 10
    and 20, as α is there.
    """
    base, others = starts["base"], {row: start for row, start in starts.items() if row != "base"}
    far = {row: parse_row(row).k in (10, 20) for row in others}
    alphas = {row: start["alpha"] * (0.5 if far[row] else 1.0) for row, start in others.items() if "alpha" in start}
    found = {row: (start["rho"] * (0.5 if far[row] else 2.0), alphas.get(row)) for row, start in others.items()}
    return {"base": 2 * base["learning_rate"], "weight_decay": base["weight_decay"] / 2} | found


# The settings at which the synthetic accuracies are highest.
BEST = {
    "sgdm": _best(small_scale.RESNET_STARTS),
    "adamw": _best(small_scale.VIT_STARTS),
    "lamb": _best(small_scale.LAMB_STARTS),
}


@dataclass(frozen=True)
class World:
    """How the methods do in it, in points above the base."""

    gain: float = 2.0  # of SAM
    kept: dict = field(default_factory=lambda: {1: 1.0, 2: 0.97, 3: 0.95, 5: 0.9, 10: 0.85, 20: 0.5})  # by LookSAM-k
    scalings: dict = field(default_factory=lambda: {"normalized": 2.5, "literal": 1.0, "adaptive": 2.4})
    slow: bool = True  # is g_v?

    def level(self, recipe):
        """The accuracy of a method at its best settings."""
        gain = {
            "base": 0.0,
            "sam": self.gain,
            "sam_k": self.gain * (0.5 - 0.01 * recipe.k),
            "look_sam": self.gain * self.kept[recipe.k],
            "look_layer_sam": self.scalings[recipe.scaling],
        }[recipe.method]
        images = 60 - 20 * recipe.label_noise - math.log2(recipe.batch_size / 50)
        return images + gain + 1.5 * bool(recipe.randaugment) + 0.1 * bool(recipe.mixup)

    def accuracy(self, recipe):
        return self.level(recipe) - off(recipe) + JITTER.get(recipe.seed, 0.0)

    def record(self, run):
        if run.kind == "drift":
            return {name: _drift(name, run.recipe.seed, self.slow) for name in ("g", "g_s", "g_h", "g_v")}
        end = self.accuracy(run.recipe)
        record = {"validation_accuracy": [end - 9 + i for i in range(10)], "train_loss": [1.0] * 10, "seconds": 1.0}
        if run.kind == "train":
            record |= {"test_accuracy": end, "train_loss_at_end": 0.01 + JITTER[run.recipe.seed] / 100}
            record |= {"sharpness_train": 0.02, "sharpness_test": 0.5, "weight_norm": 10.0, "parameters": 0.0}
        return record


def off(recipe):
    """How far a recipe is from the best settings."""
    best, name = BEST[recipe.optimizer], recipe.method
    shared = abs(math.log(recipe.learning_rate / best["base"])) + abs(
        math.log(recipe.weight_decay / best["weight_decay"])
    )
    if name == "base":
        return shared
    k = recipe.k if recipe.k in (10, 20) else 5
    named = f"{name}:{recipe.scaling}", METHODS[name].row_name(k), name
    rho, alpha = next(best[row] for row in named if row in best)
    return shared + abs(math.log(recipe.rho / rho)) + (abs(recipe.alpha - alpha) if alpha else 0.0)


def _drift(name, seed, slow):
    """Ten parts of training; g_v is the slowest of all, or in between."""
    absolute = {"g": 3.0, "g_s": 2.0, "g_h": 1.5, "g_v": 0.5 if slow else 1.7}[name]
    relative = {"g": 1.4, "g_s": 1.3, "g_h": 1.2, "g_v": 0.8 if slow else 1.39}[name]
    parts = [1 + 0.1 * i + JITTER[seed] / 10 for i in range(10)]
    return {"norm": parts, "absolute": [absolute * p for p in parts], "relative": [relative] * 10, "cosine": [0.1] * 10}


def filled(store, experiments, world, monkeypatch, report=lambda line: None):
    """Fills a store as `looksam reproduce` does, with ``world`` in place of training; the runs of each round."""
    rounds = []

    def train_all(runs, workers, done, cache_dir, ready=None):
        rounds.append(runs)
        for run in runs:
            done(run, world.record(run))

    monkeypatch.setattr(pool, "train_all", train_all)
    stages = [experiment.stages for experiment in experiments]
    pool.train_missing(store, stages, seeds=SEEDS, workers=1, data_dir="data", report=report)
    for name in small_scale.TIMED:
        recipes = small_scale.timed_recipes(name)
        rows = {row: _cost(recipe.method, recipe.k) for row, recipe in recipes.items()}
        ratios = {row: [cost - 0.01, cost + 0.05, cost + 0.1] for row, cost in rows.items()}
        store.write(f"timing-{name}", {"ratios": ratios, "flops": rows})
    return rounds


def _cost(method, k):
    return {"base": 1.0, "sam": 2.0, "layer_sam": 2.0}.get(method, 1 + 1 / k)


def lines_of(table, keys=1):
    """By the first entries of a row (the only one, or a tuple): {column: entry}."""
    names = [row[0] if keys == 1 else row[:keys] for row in table.rows]
    return dict(zip(names, (dict(zip(table.columns, row, strict=True)) for row in table.rows), strict=True))
