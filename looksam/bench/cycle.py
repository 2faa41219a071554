"""The cycle of a recipe: the fewest steps that cost, on average, what the steps of a whole run do.

It is one period of the rule. For a rule that does not act on all steps it is a run in miniature, with steps before,
inside and after the window in the share of the whole run. This module imports no framework.
"""

import math

from looksam.bench.harness import whole_cycles
from looksam.methods import METHODS
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import has_window, window

PARTS = 20  # of a run, to which the ends of the window are rounded; more would make cycles long
AT_LEAST = 20  # steps of a miniature run: to restart it takes time


def miniature(recipe: Recipe, total_steps: int) -> Recipe:
    """Returns the recipe of a run that is one cycle long: ``steps``, and ``start`` and ``stop`` as steps of it.

    A recipe whose rule acts on all steps is returned as it is.

    >>> short = miniature(Recipe(method="look_sam", k=5, start=0.8), total_steps=3900)
    >>> short.start, short.stop, short.steps
    (20, None, 25)
    """
    if not has_window(recipe):
        return recipe
    start, stop = window(recipe, total_steps)
    first = min(round(PARTS * start / total_steps), PARTS - 1)
    last = PARTS if stop is None else max(min(round(PARTS * stop / total_steps), PARTS), first + 1)
    common = math.gcd(first, last, PARTS)
    parts, active = PARTS // common, (last - first) // common
    period = _period(recipe)
    whole_periods = period // math.gcd(active, period)  # that many times ``active`` is a multiple of the period
    steps = whole_cycles(parts * whole_periods, AT_LEAST)
    ends = (first * steps // PARTS, None if stop is None else last * steps // PARTS)
    return recipe.replace(start=ends[0], stop=ends[1], steps=steps)


def cycle(recipe: Recipe) -> int:
    """Returns the steps of one cycle of a recipe that ``miniature`` returned."""
    return recipe.steps or 1 if has_window(recipe) else _period(recipe)


def _period(recipe: Recipe) -> int:
    return recipe.k if METHODS[recipe.method].has_period else 1
