"""A measurement: its processes, its turns, and the numbers that it returns."""

import json

import pytest

from looksam.bench import measure
from looksam.bench.harness import Turn
from looksam.bench.subjects import Case, choose
from looksam.methods import settings_of
from looksam.trainer.recipe import Recipe

RECIPE = Recipe(dataset="digits", batch_size=8, mesh="data=1", k=5)
MILLISECONDS = {"base": 10.0, "sam": 21.0, "look_sam": 12.0}
LINES = []  # the name and the turns of each worker, at its end
RUNNING = []


class FakeWorker:
    """In place of a process: a step takes a time that only the method decides, and CPU time twice that."""

    def __init__(self, name, target, arguments, environment):
        self.name, self.arguments, self.environment = name, arguments, environment
        RUNNING.append(self)
        self.turns = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        RUNNING.remove(self)

    def wait_until_ready(self):
        pass

    def turn(self, steps):
        self.turns.append(steps)
        seconds = MILLISECONDS[self.arguments["settings"]["method"]] / 1e3
        return Turn(seconds, 2 * seconds)

    def facts(self):
        LINES.append((self.name, self.turns))
        return {"gradients": 1.2, "kept_copies": 1.0} if "static" in self.name else {"gradients": 1.0}


@pytest.fixture
def result(monkeypatch):
    monkeypatch.setattr(measure, "Worker", FakeWorker)
    LINES.clear()
    cases = choose(RECIPE, ["sam", "look_sam"], ["static", "torch"]).cases
    half = Case("static", "look_sam", RECIPE.replace(**settings_of("look_sam")), variant="half")
    return measure.measure("digits", RECIPE, [*cases, half], rounds=3, sets=2)


def test_the_schema_of_a_result(result):
    assert result.keys() == {"version", "name", "recipe", "rounds", "sets", "bases", "rows", "environment"}
    assert Recipe(**result["recipe"]) == RECIPE
    assert result["environment"].keys() == {"cpu", "cores", "versions", "variables"}
    assert {"looksam", "python", "jax", "torch"} <= result["environment"]["versions"].keys()
    assert json.loads(json.dumps(result)) == result
    row = result["rows"][2]
    assert row == {
        "name": "static/look_sam",
        "method": "LookSAM-5",
        "row": "look_sam",
        "form": "static",
        "variant": "",
        "relative_to": "static/base",
        "environment": {},
        "wall": pytest.approx([1.2] * 3),
        "cpu": pytest.approx([1.2] * 3),
        "milliseconds": pytest.approx(12.0),
        "images_per_second": pytest.approx(8 / 0.012),
        "gradients": 1.2,
        "kept_copies": 1.0,
    }


def test_a_base_has_three_processes_and_every_process_ends(result):
    names = [name for name, _ in LINES[: len(LINES) // 2]]  # of the first of two sets
    assert len(names) == 6 + 2 + 2 + 1
    assert {"static/base", "static/base #2", "static/base #3", "torch/base #3", "static/look_sam half"} <= set(names)
    assert RUNNING == []
    assert [row["name"] for row in result["rows"]].count("static/base") == 1


def test_turns_are_long_enough_and_whole_cycles(result, monkeypatch):
    assert {tuple(turns) for name, turns in LINES if "look_sam" in name} == {(10,) * 4}
    monkeypatch.setitem(MILLISECONDS, "base", 2.1)  # 48 steps fill a tenth of a second
    LINES.clear()
    measure.measure("digits", RECIPE, choose(RECIPE, ["look_sam"], ["static"]).cases, rounds=1)
    turns = dict(LINES)
    assert turns["static/base"] == [10, 10, 48, 48]  # two to find that out
    assert turns["static/look_sam"] == [50, 50]


def test_a_late_rule_has_turns_of_whole_miniature_runs(result):
    LINES.clear()
    late = measure.measure("digits", RECIPE, choose(RECIPE, ["look_sam_5@0.8"], ["static"]).cases, rounds=1)
    assert dict(LINES)["static/look_sam_5@0.8"] == [25, 25]
    assert late["rows"][1]["method"] == "LookSAM-5, last 20 %"
