"""The cycle of a recipe: whole periods, and of a late rule a run in miniature."""

import pytest

from looksam.bench.cycle import cycle, miniature
from looksam.schedule import every
from looksam.trainer.recipe import Recipe


@pytest.mark.parametrize(("method", "k", "steps"), [("base", 5, 1), ("sam", 7, 1), ("msam", 7, 1), ("look_sam", 7, 7)])
def test_a_rule_that_acts_on_all_steps_repeats_after_its_period(method, k, steps):
    recipe = Recipe(method=method, k=k)
    assert miniature(recipe, 1000) == recipe
    assert cycle(recipe) == steps


@pytest.mark.parametrize(
    ("settings", "start", "stop", "steps"),
    [
        ({"method": "sam", "start": 0.8}, 16, None, 20),
        ({"method": "look_sam", "start": 0.8}, 20, None, 25),
        ({"method": "look_sam", "start": 800}, 20, None, 25),
        ({"method": "look_sam", "start": 803}, 20, None, 25),  # to twentieths of the run
        ({"method": "look_sam", "k": 10, "start": 0.75}, 30, None, 40),
        ({"method": "sam_k", "stop": 0.1}, 0, 5, 50),
        ({"method": "msam", "start": 0.25, "stop": 0.5}, 5, 10, 20),
        ({"method": "sam", "start": 999}, 19, None, 20),  # never less than a twentieth
        ({"method": "sam", "start": 0, "stop": 2}, 0, 1, 20),
    ],
)
def test_a_window_keeps_its_share(settings, start, stop, steps):
    short = miniature(Recipe(**settings), 1000)
    assert (short.start, short.stop, short.steps, cycle(short)) == (start, stop, steps, steps)
    period = short.k if settings["method"] in ("look_sam", "sam_k") else 1
    active = sum(every(start=start, stop=stop).refreshes(step) for step in range(steps))
    assert active % period == 0


def test_the_base_optimizer_has_no_window():
    recipe = Recipe(method="base", start=0.8)
    assert miniature(recipe, 10) == recipe
    assert cycle(recipe) == 1
