"""Compile a recipe's programs ahead of time and read what they cost."""

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any

import jax

from looksam.trainer.parallel import BatchSplit, make_layout
from looksam.trainer.plan import environment
from looksam.trainer.plan.chips import Chip
from looksam.trainer.plan.estimate import mixture
from looksam.trainer.plan.program import Cost, cost
from looksam.trainer.plan.result import plan
from looksam.trainer.recipe import Recipe
from looksam.trainer.training import compile_step, total_steps

REFRESH = {"base": None, "refresh": True, "reuse": False}  # the program a step is compiled to


def make_plan(recipe: Recipe, chip: Chip, utilisation: float, say: Callable[[str], None]) -> dict[str, Any]:
    """The plan of a recipe on its mesh. Compiles two or three programs for the devices JAX has started with."""
    sizes = recipe.mesh_sizes()
    environment.check(sizes[0] * sizes[1] if sizes else 1, jax.device_count())
    devices = make_layout(sizes).devices
    BatchSplit.of(recipe, devices)  # before any time is spent
    steps = min(total_steps(recipe), recipe.steps or total_steps(recipe))
    return plan(
        recipe,
        _costs(recipe, say),
        chip=chip,
        devices=devices,
        steps=steps,
        backend=jax.default_backend(),
        utilisation=utilisation,
    )


def programs(recipe: Recipe) -> list[str]:
    """Those that the recipe's method, the rule on every step and base need: base, refresh, reuse, or fewer."""
    needed = {program for shares in mixture(recipe.method, recipe.k).values() for program in shares}
    return [name for name in REFRESH if name in needed]


def _costs(recipe: Recipe, say: Callable[[str], None]) -> dict[str, Cost]:
    """Two programs are compiled at a time, the longest one first: the compiler uses one core for each."""
    names = programs(recipe)
    longest_first = sorted(names, key=lambda name: name != "refresh")
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        found = {name: pool.submit(_compiled_cost, recipe, name, say) for name in longest_first}
    return {name: found[name].result() for name in names}


def _compiled_cost(recipe: Recipe, program: str, say: Callable[[str], None]) -> Cost:
    began = time.perf_counter()
    recipe = recipe.replace(method="base") if program == "base" else recipe
    found = cost(compile_step(recipe, make_layout(recipe.mesh_sizes()), REFRESH[program]))
    say(f"compiled {program} in {time.perf_counter() - began:.0f} s")
    return found
