"""The interleaved timer on a clock that is set by hand."""

import pytest

from looksam.experiments import small_scale
from looksam.experiments.engine import timer
from looksam.trainer.recipe import Recipe


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when a step says so."""
    now = [0.0]
    monkeypatch.setattr(timer.time, "perf_counter", lambda: now[0])
    return now


def test_ratios_are_to_the_base_of_the_same_round(clock):
    taken = {"base": [], "sam": []}

    def steps(name, seconds, cycle, first):
        def step(i):
            taken[name].append(i)
            clock[0] += seconds + (100.0 if len(taken[name]) <= cycle else 0.0)  # the first round compiles

        return timer.Steps(step, cycle, first)

    lines = []
    methods = {"base": steps("base", 1.0, 4, 0), "sam": steps("sam", 2.0, 5, 10)}
    assert timer.time_ratios(methods, 3, lines.append) == {"base": [1.0] * 3, "sam": [2.0] * 3}
    assert taken == {"base": list(range(16)), "sam": list(range(10, 30))}  # one round to warm up, then three
    assert lines == [f"timing round {i}/3" for i in range(4)]


def test_quartiles_are_over_rounds(clock):
    seconds = iter([9.0, 1.0, 2.0, 3.0, 4.0, 5.0])

    def base(i):
        clock[0] += 1.0

    def other(i):
        clock[0] += next(seconds)

    methods = {"base": timer.Steps(base, 2), "other": timer.Steps(other, 1)}
    assert timer.time_ratios(methods, 5)["other"] == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("method", "k", "cycle"),
    [("base", 5, 20), ("sam", 7, 20), ("look_sam", 7, 21), ("sam_k", 1, 20), ("look_sam", 50, 50)],
)
def test_a_round_has_whole_cycles_of_k(method, k, cycle):
    assert timer.cycle(Recipe(method=method, k=k)) == cycle


def test_timed_rows_are_recipes():
    recipes = small_scale.timed_recipes("vit")
    assert (recipes["sam_10"].method, recipes["sam_10"].k) == ("sam_k", 10)
    assert (recipes["look_sam_1"].method, recipes["look_sam_1"].k) == ("look_sam", 1)
    assert small_scale.timed_recipes("lamb")["look_layer_sam"].k == 5
