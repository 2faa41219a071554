"""Time a step relative to the base optimizer, on models large enough that a step is work and not overhead.

Every method in turn, in a shuffled order, whole cycles of its own k; each round is compared with its own base, so
that a machine that slows down slows them all.
"""

import functools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from looksam.experiments.store import Store
from looksam.trainer.data import Dataset, Images
from looksam.trainer.optimizers import make_rule
from looksam.trainer.recipe import Recipe
from looksam.trainer.training import Training

STEPS = 10  # a round, of methods without a cycle
ROUNDS = 6
IMAGES = 512

VIT = Recipe(
    dataset="cifar100", mesh="data=1", model="vit", patch=4, width=128, depth=4, heads=4, batch_size=16, epochs=10
)
TIMED: dict[str, Recipe] = {
    "vit": VIT.replace(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1, decay_all=False, clip_norm=1.0),
    "resnet": Recipe(dataset="cifar100", mesh="data=1", model="resnet_small", batch_size=16, epochs=10),
    "lamb": VIT.replace(optimizer="lamb", learning_rate=1e-2, weight_decay=0.1, decay_all=False, clip_norm=1.0),
}
METHODS: dict[str, list[tuple[str, int]]] = {
    "vit": [("base", 5), ("sam", 5), *((m, k) for k in (5, 10, 20) for m in ("sam_k", "look_sam"))]
    + [("look_sam", k) for k in (1, 2, 3)],
    "resnet": [("base", 5), ("sam", 5), *((m, k) for k in (5, 10, 20) for m in ("sam_k", "look_sam"))],
    "lamb": [("base", 5), ("layer_sam", 5), ("look_sam", 5), ("look_layer_sam", 5)],
}


def row_name(method: str, k: int) -> str:
    """base, sam, sam_5, look_sam_5, …: as in the paper's tables."""
    return {"sam_k": f"sam_{k}", "look_sam": f"look_sam_{k}"}.get(method, method)


def ratios(store: Store, name: str) -> dict[str, list[float]]:
    """The quartiles over rounds of each method's time to base; empty where they were not measured yet."""
    found = store.measurement(f"timing-{name}")
    return found["ratios"] if found else {}


def measure(name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Time and FLOPs of each method, relative to base."""
    recipes = {row_name(m, k): TIMED[name].replace(method=m, k=k) for m, k in METHODS[name]}
    return {"ratios": time_ratios(recipes, say), "flops": {row: flop_ratio(recipe) for row, recipe in recipes.items()}}


def flop_ratio(recipe: Recipe) -> float:
    """FLOPs of a mean step, relative to those of the base optimizer."""
    from looksam.trainer.plan import relative_flops

    return round(relative_flops(recipe), 4)


def time_ratios(
    recipes: Mapping[str, Recipe], say: Callable[[str], None], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    clocks = {name: _Clock(recipe) for name, recipe in recipes.items()}
    order, shuffle = list(clocks), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in clocks}
    for i in range(rounds + 1):
        shuffle.shuffle(order)
        for name in order:
            taken = clocks[name].cycle()
            if i:  # the first round compiles
                seconds[name].append(taken)
        say(f"timing round {i}/{rounds}")
    base = np.array(seconds["base"])
    return {
        name: np.round(np.quantile(np.array(taken) / base, [0.25, 0.5, 0.75]), 4).tolist()
        for name, taken in seconds.items()
    }


class _Clock:
    """One method's training, timed a cycle at a time."""

    def __init__(self, recipe: Recipe) -> None:
        self.training, self.rule = _training(recipe.replace(k=min(recipe.k, 2))), make_rule(recipe)
        self.state, self.i = self.training.init(), 0
        self.steps = recipe.k if recipe.method in ("sam_k", "look_sam", "look_layer_sam") and recipe.k > 1 else STEPS

    def cycle(self) -> float:
        """Seconds a step."""
        began = time.perf_counter()
        for _ in range(self.steps):
            refresh = self.rule.refreshes(self.i) if self.rule else None
            batch = self.training.batches.arguments(self.i)
            self.state, _ = self.training.programs.step(self.state, refresh, *batch)
            self.i += 1
        jax.block_until_ready(self.state)
        return (time.perf_counter() - began) / self.steps


@functools.cache
def _training(recipe: Recipe) -> Training:
    """Shared by all k: which steps refresh is in no program, but for k = 1."""
    return Training(recipe, _noise())


def _noise() -> Dataset:
    """Images of noise: how long a step takes does not depend on what is in them."""
    rng = np.random.default_rng(0)
    images = Images(rng.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8), rng.integers(0, 100, IMAGES).astype(np.int32))
    return Dataset("cifar100", images, images, 100, (32, 32, 3), (0.5,) * 3, (0.25,) * 3)
