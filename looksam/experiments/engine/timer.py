"""The timer: step times relative to the base optimizer, by the interleaved harness of ``looksam.bench``."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from looksam.bench.cycle import cycle, miniature
from looksam.bench.harness import clocked, interleave, whole_cycles
from looksam.bench.jax_subjects import static_steps
from looksam.experiments.engine.runner import Runner
from looksam.experiments.engine.runs import Store
from looksam.trainer.optimizers import make_rule
from looksam.trainer.plan import relative_flops
from looksam.trainer.recipe import Recipe
from looksam.trainer.step import refresh_of
from looksam.trainer.training import total_steps

STEPS = 20  # per turn, at least
ROUNDS = 15
DIGITS = 4  # of a stored ratio


class Steps(NamedTuple):
    """The training steps of one method, for ``time_ratios``."""

    run: Callable[[int], Any]  # takes so many steps, and waits for their results
    per_turn: int  # whole cycles, see ``looksam.bench.cycle``


def time_ratios(
    methods: Mapping[str, Steps], rounds: int, report: Callable[[str], None] = lambda line: None
) -> dict[str, list[float]]:
    """The quartiles, over rounds, of each method's time per step relative to that of ``"base"``."""
    turns = {name: functools.partial(clocked, *steps) for name, steps in methods.items()}
    timings = interleave(turns, rounds, report)
    return {name: [round(q, DIGITS) for q in timings.ratios(name, ["base"])["wall"]] for name in methods}


def steps_of_runner(runner: Runner) -> Steps:
    """The steps of runs that have ended: they train on, so read their results first."""
    recipe = miniature(runner.recipe, runner.total_steps)
    length, rule = cycle(recipe), make_rule(recipe, cycle(recipe))
    per_turn = whole_cycles(length, STEPS)
    step = runner.total_steps + -runner.total_steps % per_turn  # a turn starts with a cycle

    def run(count: int) -> None:
        nonlocal step
        for _ in range(count):
            runner.take(step, refresh_of(rule, step % length))
            step += 1
        jax.block_until_ready(runner.state)

    return Steps(run, per_turn)


def measure(recipes: Mapping[str, Recipe], report: Callable[[str], None]) -> dict[str, Any]:
    """Time and FLOPs per step of each recipe, relative to that of ``"base"``."""
    return {
        "ratios": recipe_ratios(recipes, ROUNDS, report),
        "flops": {name: round(relative_flops(recipe), 4) for name, recipe in recipes.items()},
    }


def recipe_ratios(
    recipes: Mapping[str, Recipe], rounds: int, report: Callable[[str], None] = lambda line: None
) -> dict[str, list[float]]:
    """The ratios of ``time_ratios`` for the trainer's steps of each recipe, all in this process."""
    short = {name: miniature(recipe, total_steps(recipe)) for name, recipe in recipes.items()}
    methods = {
        name: Steps(static_steps(recipe).run, whole_cycles(cycle(recipe), STEPS)) for name, recipe in short.items()
    }
    return time_ratios(methods, rounds, report)


def stored_ratios(store: Store, name: str) -> dict[str, list[float]]:
    """The stored quartiles of a timing; empty where it was not measured yet."""
    measurement = store.measurement(f"timing-{name}")
    return measurement["ratios"] if measurement else {}
