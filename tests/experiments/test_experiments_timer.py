"""The timer of the experiments: what it hands to the interleaved harness."""

import types

import pytest

from looksam.bench import harness
from looksam.experiments import small_scale
from looksam.experiments.engine import timer
from looksam.trainer.recipe import Recipe


def test_ratios_are_rounded_quartiles_of_the_wall_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(harness.time, "perf_counter", lambda: now[0])

    def steps(seconds, per_turn):
        def run(count):
            assert count == per_turn
            now[0] += seconds * count

        return timer.Steps(run, per_turn)

    lines = []
    ratios = timer.time_ratios({"base": steps(3.0, 4), "sam": steps(5.0, 5)}, 3, lines.append)
    assert ratios == {"base": [1.0] * 3, "sam": [1.6667] * 3}
    assert lines[-1] == "timing: round 3/3"


def test_the_steps_of_a_runner_continue_after_its_run():
    taken = []
    runner = types.SimpleNamespace(recipe=Recipe(method="look_sam", k=7), total_steps=30, state=())
    runner.take = lambda step, refresh: taken.append((step, refresh))
    steps = timer.steps_of_runner(runner)
    for _ in range(2):
        steps.run(steps.per_turn)
    assert taken == [(step, step % 7 == 0) for step in range(42, 84)]  # two turns of 21, from a multiple of 21 on


@pytest.mark.parametrize(
    ("settings", "turn"),
    [
        ({"method": "base", "start": 0.8}, [None] * 20),
        ({"method": "sam"}, [True] * 20),
        ({"method": "sam", "start": 0.8}, [None] * 16 + [True] * 4),
        ({"method": "look_sam", "start": 240}, [None] * 20 + [True, *[False] * 4]),  # of 300 steps
        ({"method": "sam_k", "start": 0.25, "stop": 0.75}, [None] * 5 + [True, *[False] * 4] * 2 + [None] * 5),
    ],
)
def test_a_turn_of_a_runner_has_the_steps_of_the_run_in_their_share(settings, turn):
    """Though the run has ended, and the rule would act on all steps after that, or on none."""
    taken = []
    runner = types.SimpleNamespace(recipe=Recipe(k=5, **settings), total_steps=300, state=())
    runner.take = lambda step, refresh: taken.append(refresh)
    steps = timer.steps_of_runner(runner)
    steps.run(steps.per_turn)
    assert taken == turn


def test_timed_rows_are_recipes():
    recipes = small_scale.timed_recipes("vit")
    assert (recipes["sam_10"].method, recipes["sam_10"].k) == ("sam_k", 10)
    assert (recipes["look_sam_2"].method, recipes["look_sam_2"].k) == ("look_sam", 2)
    assert small_scale.timed_recipes("lamb")["look_layer_sam"].k == 5
