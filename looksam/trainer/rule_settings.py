"""What a recipe says about its rule: the arguments of the rule's factory, when the rule acts, and what that costs.

JAX and PyTorch share it; no framework is imported.
"""

import re
from typing import Any, NamedTuple

from looksam.methods import METHODS
from looksam.trainer.recipe import Recipe


class Window(NamedTuple):
    """The steps of a run on which the rule acts."""

    start: int
    stop: int | None  # None: to the end

    def share(self, steps: int) -> float:
        """Of the first ``steps`` steps, the share that is in the window."""
        stop = steps if self.stop is None else min(self.stop, steps)
        return max(stop - self.start, 0) / steps


def has_window(recipe: Recipe) -> bool:
    """Returns whether the recipe has a rule that does not act on all steps."""
    return METHODS[recipe.method].is_rule and (recipe.start != 0 or recipe.stop is not None)


def window(recipe: Recipe, total_steps: int) -> Window:
    """Returns the recipe's start and stop as steps of a run of ``total_steps``.

    >>> window(Recipe(method="sam", start=0.8), 150), window(Recipe(method="sam", start=5, stop=0.1), 150)
    (Window(start=120, stop=None), Window(start=5, stop=15))
    """
    if not has_window(recipe):
        return Window(0, None)
    start = _step(recipe.start, total_steps)
    stop = None if recipe.stop is None else _step(recipe.stop, total_steps)
    if start >= total_steps:  # of the whole run: one that --steps ends early may be resumed
        raise ValueError(
            f"start={recipe.start} is step {start} of a run of {total_steps} steps, so that the rule would never act; "
            "pass an earlier start, or train longer."
        )
    if stop is not None and stop <= start:
        raise ValueError(
            f"stop={recipe.stop} is step {stop} of a run of {total_steps} steps, not after start={recipe.start}, which "
            f"is step {start}, so that the rule would never act; pass a later stop."
        )
    return Window(start, stop)


def _step(value: int | float, total_steps: int) -> int:
    return round(value * total_steps) if isinstance(value, float) else value


def rule_settings(recipe: Recipe, total_steps: int) -> dict[str, Any]:
    """Returns the arguments of the rule's factory, by name; none for the base optimizer.

    ``start``, ``stop`` and ``perturb`` are among them only where the recipe sets them.
    """
    method = METHODS[recipe.method]
    if not method.is_rule:
        return {}
    start, stop = window(recipe, total_steps)
    perturb = None if recipe.perturb is None else re.compile(recipe.perturb).search  # a match is true
    shared = {"start": start or None, "stop": stop, "perturb": perturb}
    own = {name: getattr(recipe, name) for name in method.settings}
    return own | {name: value for name, value in shared.items() if value is not None}


def gradients_per_step(recipe: Recipe, total_steps: int) -> float:
    """Returns the mean number of gradients per step, over a run of ``total_steps``."""
    active = window(recipe, total_steps).share(total_steps)
    return METHODS[recipe.method].gradients_per_step(recipe.k, active)
