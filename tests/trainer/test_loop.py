"""When the loop logs, what selects the best checkpoint, and how a run is read back."""

import json
import time

import numpy as np
import pytest

from looksam.trainer import RunError, evaluate_run, run
from looksam.trainer.loop import restored
from looksam.trainer.progress import Progress
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.metrics import read_metrics
from looksam.trainer.run_folder.run_directory import read_recipe, write_recipe
from looksam.trainer.training import Training

pytestmark = pytest.mark.usefixtures("as_users_run_it")
RECIPE = Recipe(mesh="data=1", batch_size=150, epochs=3, keep_checkpoints=1)  # 4 steps per epoch, 3 with a validation
TIMES = {"first_step_seconds", "compile_seconds"}


@pytest.fixture
def calls(monkeypatch):
    """Functions that are called with each step's number before it is taken."""
    before, step = [], Training.step

    def watched(self, state, i, **options):
        for call in before:
            call(i)
        return step(self, state, i, **options)

    monkeypatch.setattr(Training, "step", watched)
    return before


@pytest.mark.parametrize("log_every", [1, 2, 5])
def test_metrics_are_logged_one_step_later(tmp_path, calls, log_every):
    logged = []
    calls.append(lambda i: logged.append([r["step"] for r in _records(tmp_path) if r["split"] == "train"]))
    run(RECIPE.replace(log_every=log_every, eval_every=3), tmp_path, quiet=True)
    every = range(log_every, 12 + 1, log_every)
    assert logged == [[step for step in every if step < i] for i in range(12)]
    assert [r["step"] for r in _records(tmp_path) if r["split"] == "train"] == sorted({*every, 12})


def test_the_first_training_line_of_each_start_has_its_time(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(Progress, "first_step", lambda self, step, *seconds: shown.append(seconds))
    for steps in (4, 8):
        run(RECIPE.replace(log_every=2, eval_every=3, steps=steps), tmp_path, quiet=True)
    lines = {r["step"]: (r["first_step_seconds"], r["compile_seconds"]) for r in _records(tmp_path) if TIMES & r.keys()}
    assert lines == {2: shown[0], 6: shown[1]}
    assert all(0 < compile_seconds < seconds for seconds, compile_seconds in shown)


def test_the_time_of_the_first_step_counts_from_the_start_of_the_program(tmp_path):
    run(RECIPE.replace(log_every=1, steps=1), tmp_path, quiet=True, started=time.perf_counter() - 1000)
    assert _records(tmp_path)[0]["first_step_seconds"] > 1000


def _records(folder):
    return read_metrics(folder) if (folder / "metrics.jsonl").exists() else []


@pytest.mark.parametrize(("log_every", "noticed"), [(1, 3), (2, 4), (5, 5)])
def test_a_lost_run_stops_one_step_after_the_log(tmp_path, monkeypatch, calls, log_every, noticed):
    """The loss is NaN from step 3 on."""
    steps, step = [], Training.step
    calls.append(steps.append)

    def losing(self, state, i, **options):
        state, metrics = step(self, state, i, **options)
        return state, metrics | ({"loss": np.float32(np.nan)} if i >= 2 else {})

    monkeypatch.setattr(Training, "step", losing)
    with pytest.raises(RunError, match=f"loss is nan at step {noticed}; nothing is saved yet"):
        run(RECIPE.replace(log_every=log_every, eval_every=3), tmp_path, quiet=True)
    assert len(steps) == noticed + 1


@pytest.mark.parametrize(
    ("validation", "metric", "steps"), [(0.25, "validation_accuracy", (6, 9)), (None, "test_accuracy", (8, 12))]
)
def test_the_best_checkpoint_is_named_by_its_metric_and_can_be_read(tmp_path, monkeypatch, validation, metric, steps):
    scores, (best, last) = iter([50.0, 90.0, 60.0, 60.0, 90.0]), steps
    with monkeypatch.context() as patch:
        patch.setattr(Training, "evaluate", lambda *_: {"loss": 1.0, "accuracy": next(scores)})
        result = run(RECIPE.replace(validation=validation), tmp_path, quiet=True)
    assert (result["best_metric"], result["best_accuracy"], result[metric]) == (metric, 90.0, 60.0)
    content = json.loads((tmp_path / "checkpoints" / str(best) / "manifest.json").read_text())["content"]
    assert content["best_metric"] == metric and content["metrics"] == {metric: 90.0}
    split = metric.removesuffix("_accuracy")
    assert result["split"] == split
    assert [r["accuracy"] for r in read_metrics(tmp_path) if r["split"] == split] == [50.0, 90.0, 60.0]
    for checkpoint, step in {"last": last, "best": best, best: best, last: last}.items():
        with restored(tmp_path, checkpoint=checkpoint) as (training, found, state):
            assert found == step == int(state.step)
            accuracy = training.evaluate(state)["accuracy"]
        assert evaluate_run(tmp_path, checkpoint)["test_accuracy"] == accuracy
    assert evaluate_run(tmp_path)["step"] == last
    with pytest.raises(RunError, match=f"has no checkpoint of step 1; the steps there are: {best}, {last}"):
        evaluate_run(tmp_path, 1)


def test_a_run_without_an_evaluation_has_no_best(tmp_path, calls):
    class StoppedError(Exception):
        pass

    def stop(i):
        if i == 2:
            raise StoppedError

    calls.append(stop)
    with pytest.raises(StoppedError):
        run(RECIPE.replace(checkpoint_every=1), tmp_path, quiet=True)
    with pytest.raises(RunError, match="has no checkpoint with a test_accuracy; the steps there are: 2"):
        evaluate_run(tmp_path, "best")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 3}, "recipe.json has format version 3, written by a newer looksam.* reads version 2; upgrade"),
        ({"version": 0}, "recipe.json has format version 0, written by an older looksam.* reads version 2; install"),
        ({"version": None}, "recipe.json has no format version.* reads version 2.*start in a new --run-dir"),
    ],
)
def test_another_version_of_the_recipe_format_is_named(tmp_path, change, words):
    write_recipe(tmp_path, RECIPE)
    assert read_recipe(tmp_path) == RECIPE
    path = tmp_path / "recipe.json"
    stored = json.loads(path.read_text())
    assert stored == {"version": 2, "recipe": RECIPE.to_dict()}
    path.write_text(json.dumps({name: value for name, value in (stored | change).items() if value is not None}))
    for read in (evaluate_run, lambda folder: run(RECIPE, folder, quiet=True)):
        with pytest.raises(RunError, match=words):
            read(tmp_path)
