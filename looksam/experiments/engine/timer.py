"""The timer: step times relative to the base optimizer, measured in one interleaved run.

Every method takes its turn in a shuffled order, whole cycles of its own k at a time, and about as many steps as the
others: the first step after another method's turn is slow. Each round is compared with its own base, so that a machine
that slows down slows down all methods alike.
"""

import functools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from looksam.experiments.engine.runner import Runner
from looksam.experiments.engine.runs import Store
from looksam.methods import METHODS
from looksam.trainer.data import Dataset, Images
from looksam.trainer.optimizers import make_rule
from looksam.trainer.plan import relative_flops
from looksam.trainer.recipe import Recipe
from looksam.trainer.training import Training

STEPS = 20  # per round, at least
ROUNDS = 6
QUARTILES = (0.25, 0.5, 0.75)
IMAGES = 512  # of noise


class Steps(NamedTuple):
    """The training steps of one method, for ``time_ratios``."""

    step: Callable[[int], Any]  # takes step i and returns arrays to wait for
    cycle: int  # steps per round: whole cycles of k
    first: int = 0


def time_ratios(
    methods: Mapping[str, Steps], rounds: int, report: Callable[[str], None] = lambda line: None
) -> dict[str, list[float]]:
    """The quartiles, over rounds, of each method's time per step relative to that of ``"base"``.

    One more round goes first, to compile and warm up.
    """
    order, shuffle = list(methods), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for i in range(rounds + 1):
        shuffle.shuffle(order)
        for name in order:
            seconds[name].append(_seconds_per_step(methods[name], i))
        report(f"timing round {i}/{rounds}")
    base = np.array(seconds["base"])
    return {name: _quartiles(np.array(times)[1:] / base[1:]) for name, times in seconds.items()}


def _seconds_per_step(method: Steps, round_: int) -> float:
    first = method.first + round_ * method.cycle
    began = time.perf_counter()
    for i in range(first, first + method.cycle):
        arrays = method.step(i)
    jax.block_until_ready(arrays)
    return (time.perf_counter() - began) / method.cycle


def _quartiles(ratios: np.ndarray) -> list[float]:
    return np.round(np.quantile(ratios, QUARTILES), 4).tolist()


def cycle(recipe: Recipe) -> int:
    """The steps of a round: whole cycles of the recipe's k, and at least ``STEPS``."""
    k = recipe.k if METHODS[recipe.method].has_period else 1
    return -(-STEPS // k) * k


def steps_of_runner(runner: Runner) -> Steps:
    """The steps of runs that have ended: they train on, so read their results first."""
    length = cycle(runner.recipe)

    def step(i: int) -> Any:
        runner.step(i)
        return runner.state

    return Steps(step, length, runner.total_steps + -runner.total_steps % length)


def steps_of_recipe(recipe: Recipe) -> Steps:
    """The steps of the trainer on images of noise: what is in the images does not change the time of a step."""
    training, rule = _training(recipe.replace(k=min(recipe.k, 2))), make_rule(recipe)
    state = training.init()

    def step(i: int) -> Any:
        nonlocal state
        refresh = rule.refreshes(i) if rule else None
        state, _ = training.programs.step(state, refresh, *training.batches.arguments(i))
        return state

    return Steps(step, cycle(recipe))


@functools.cache
def _training(recipe: Recipe) -> Training:
    """Shared by all k > 1, since no program depends on which steps refresh."""
    rng = np.random.default_rng(0)
    images = Images(rng.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8), rng.integers(0, 100, IMAGES).astype(np.int32))
    return Training(recipe, Dataset("cifar100", images, images, 100, (32, 32, 3), (0.5,) * 3, (0.25,) * 3))


def measure(recipes: Mapping[str, Recipe], report: Callable[[str], None]) -> dict[str, Any]:
    """Time and FLOPs per step of each recipe, relative to that of ``"base"``."""
    methods = {name: steps_of_recipe(recipe) for name, recipe in recipes.items()}
    ratios = time_ratios(methods, ROUNDS, report)
    return {"ratios": ratios, "flops": {name: round(relative_flops(recipe), 4) for name, recipe in recipes.items()}}


def stored_ratios(store: Store, name: str) -> dict[str, list[float]]:
    """The stored quartiles of a timing; empty where it was not measured yet."""
    measurement = store.measurement(f"timing-{name}")
    return measurement["ratios"] if measurement else {}
