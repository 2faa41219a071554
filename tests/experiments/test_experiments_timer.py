"""The timer of the experiments: what it hands to the interleaved harness."""

import types

import pytest

from looksam.bench import harness
from looksam.bench.measure import steps_per_turn
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
    runner = types.SimpleNamespace(recipe=Recipe(method="look_sam", k=7), total_steps=30, step=taken.append, state=())
    steps = timer.steps_of_runner(runner)
    for _ in range(2):
        steps.run(steps.per_turn)
    assert taken == list(range(42, 84))  # two turns of 21 steps, from a multiple of 21 on


@pytest.mark.parametrize(
    ("method", "k", "steps"),
    [("base", 5, 20), ("sam", 7, 20), ("look_sam", 7, 21), ("sam_k", 1, 20), ("look_sam", 50, 50)],
)
def test_a_turn_has_whole_cycles_of_k(method, k, steps):
    assert steps_per_turn(Recipe(method=method, k=k), 20) == steps


def test_timed_rows_are_recipes():
    recipes = small_scale.timed_recipes("vit")
    assert (recipes["sam_10"].method, recipes["sam_10"].k) == ("sam_k", 10)
    assert (recipes["look_sam_1"].method, recipes["look_sam_1"].k) == ("look_sam", 1)
    assert small_scale.timed_recipes("lamb")["look_layer_sam"].k == 5
