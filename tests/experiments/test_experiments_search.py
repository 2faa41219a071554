"""The search for hyper-parameters: it ends inside, asks for nothing twice, and starts from the base's settings."""

import math

import pytest

from looksam.experiments.engine import search
from looksam.experiments.engine.runs import Store
from looksam.experiments.engine.search import SearchStudy, line_search, tuning_stages
from looksam.trainer.recipe import Recipe

STUDY = SearchStudy(
    Recipe(validation=0.2, epochs=10),
    {
        "base": {"learning_rate": 0.1, "weight_decay": 0.01},
        "look_sam_5": {"rho": 0.2, "alpha": 0.3},
        "sam@0.8": {"rho": 0.4},
    },
    epochs=6,
)


@pytest.mark.parametrize("peak", [(0.0,), (7.2,), (-9.0,), (3.0, -4.0), (0.4, 5.0, -6.0)])
def test_the_best_is_inside_its_lines_and_found(peak):
    score = lambda point: -sum((a - b) ** 2 for a, b in zip(point, peak, strict=True))
    trace = line_search(len(peak), score, budget=100)
    assert trace.complete and len(set(trace.points)) == len(trace.points)
    assert trace.best == tuple(round(value) for value in peak)
    for axis, value in enumerate(trace.best):
        tried = [point[axis] for point in trace.points]
        assert min(tried) < value < max(tried)


def test_past_the_budget_no_fine_line_begins_but_every_setting_has_had_its_turn():
    trace = line_search(2, lambda point: -abs(point[0] - 20) - abs(point[1] - 2.9), budget=8)  # rises for long
    assert trace.best == (20, 2) and trace.complete
    assert max(trace.points)[0] == 22 and all(x % 2 == y % 2 == 0 for x, y in trace.points)


def test_beyond_a_neighbour_that_is_as_good_one_more_is_tried():
    rises = {(0,): 5.0, (-2,): 4.0, (2,): 5.0, (4,): 6.0, (6,): 3.0}
    assert line_search(1, rises.get, budget=0) == (list(rises), (4,), True)
    falls = {(0,): 5.0, (-2,): 4.0, (2,): 5.0, (4,): 4.5}
    assert line_search(1, falls.get, budget=0) == (list(falls), (0,), True)
    assert line_search(1, lambda point: 5.0, budget=0) == ([(0,), (-2,), (2,), (-4,), (4,)], (0,), True)


def test_what_has_no_score_yet_is_asked_for():
    known = {(0,): 1.0, (-2,): 0.5}
    trace = line_search(1, known.get)
    assert trace == ([(0,), (-2,), (2,)], (0,), False)


def finish(store, study, row, score):
    """Trains what a row asks for, round by round; ``score`` is of a recipe."""
    rounds = 0
    while missing := [run for run in study.tuning(store, row) if run not in store]:
        rounds += 1
        for run in missing:
            store.add(run, {"validation_accuracy": [99.0, score(run.recipe)]})
    return rounds


def off(value, best):
    return -abs(math.log2(value / best))


def test_a_study_is_tuned_round_by_round(tmp_path):
    store = Store(tmp_path)
    assert STUDY.tuning(store, "look_sam_5") == [] and not STUDY.is_tuned(store, "look_sam_5")
    first = STUDY.tuning(store, "base")
    assert [run.recipe.learning_rate for run in first] == [0.1, 0.05, 0.2]
    assert {(run.kind, run.recipe.epochs, run.recipe.seed) for run in first} == {("tune", 6, search.TUNING_SEED)}
    peak = lambda recipe: off(recipe.learning_rate, 0.4) + off(recipe.weight_decay, 0.02)
    assert finish(store, STUDY, "base", peak) == 5
    assert STUDY.tuned(store, "base") == STUDY.recipe.replace(learning_rate=0.4, weight_decay=0.02)

    score = lambda r: off(r.rho, 0.1) + off(r.alpha, 0.3) + off(r.learning_rate, 0.1) + off(r.weight_decay, 0.01)
    finish(store, STUDY, "look_sam_5", score)
    tuned = STUDY.tuned(store, "look_sam_5", epochs=20)
    assert (tuned.method, tuned.k, tuned.epochs) == ("look_sam", 5, 20)
    assert (tuned.rho, tuned.alpha, tuned.learning_rate, tuned.weight_decay) == (0.1, 0.3, 0.1, 0.01)
    (selected, best), *others = STUDY.tried(store, "look_sam_5")
    assert selected == {"rho": 0.1, "alpha": 0.3, "learning_rate": 0.1, "weight_decay": 0.01}
    assert all(value < best for _, value in others) and len(others) + 1 >= search.BUDGET

    finish(store, STUDY, "sam@0.8", lambda recipe: 0.0)  # all alike: where it started
    started = {"method": "sam", "start": 0.8, "rho": 0.4, "learning_rate": 0.2, "weight_decay": 0.02}
    assert STUDY.tuned(store, "sam@0.8") == STUDY.recipe.replace(**started)


def test_what_is_expected_is_the_least_that_a_search_takes(tmp_path):
    store, rows = Store(tmp_path), ("base", "look_sam_5")
    ready, later = tuning_stages([STUDY], store, rows)
    assert len(ready) == 3 and set(ready) < set(later)
    assert [sum(run.recipe.method == name for run in later) for name in ("base", "look_sam")] == [7, 9]
    for row in rows:
        finish(store, STUDY, row, lambda recipe: off(recipe.learning_rate, 0.4))
    ready, later = tuning_stages([STUDY], store, rows)
    assert ready == later and len(ready) > 14 and all(run in store for run in ready)


def test_the_tuning_seed_is_not_a_reported_one():
    assert search.TUNING_SEED >= 50


def test_a_value_that_is_reached_in_two_ways_is_the_same():
    there = search.settings_at({"rho": 0.3}, (7,))["rho"]
    assert search.settings_at({"rho": there}, (-7,)) == {"rho": 0.3}
    assert search.settings_at({"rho": 0.1}, (2,)) == {"rho": 0.2}
