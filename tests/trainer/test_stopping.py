"""How a run ends before its last step, and what counts as finished: signals, time, patience, divergence, lost data."""

import json
import math
import os
import shutil
import signal
import threading
import time

import jax
import numpy as np
import pytest
from PIL import Image

from looksam.cli import main
from looksam.trainer import RunError, run
from looksam.trainer.progress import Progress
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.metrics import read_metrics
from looksam.trainer.stopping import Interrupts
from looksam.trainer.training import Training

RECIPE = Recipe(mesh="data=1", batch_size=150, epochs=6, keep_checkpoints=1)  # 4 steps per epoch, 3 with validation
as_users_run_it = pytest.mark.usefixtures("as_users_run_it")


class Scores:
    """In place of evaluations: accuracies by split, one after another."""

    def __init__(self):
        self.accuracies, self.loss, self.asked = {}, 1.0, []

    def evaluate(self, state, split="test"):
        self.asked.append((int(state.step), split))
        return {"loss": self.loss, "accuracy": self.accuracies[split].pop(0)}


@pytest.fixture
def scores(monkeypatch):
    scores = Scores()
    monkeypatch.setattr(Training, "evaluate", lambda self, *arguments: scores.evaluate(*arguments))
    return scores


def without_times(folder):
    return [
        {name: value for name, value in record.items() if not name.endswith("_seconds")}
        for record in read_metrics(folder)
    ]


# --- patience and time ----------------------------------------------------------------------------------------------


@as_users_run_it
def test_patience_ends_a_run_and_outlasts_a_restart(tmp_path, scores):
    scores.accuracies["test"] = [50.0, 60.0, 60.0, 40.0]
    lines = []
    run(RECIPE.replace(patience=2, steps=12), tmp_path, quiet=True)
    for _ in range(2):  # the second time there is nothing to do
        result = run(RECIPE.replace(patience=2), tmp_path, quiet=True, report=lines.append)
        assert (result["status"], result["reason"], result["step"]) == ("finished", "patience", 16)
        assert (result["best_accuracy"], result["best_step"], result["test_accuracy"]) == (60.0, 8, 40.0)
    assert lines[-1] == "stopped early at step 16: 2 evaluations without a better test_accuracy than 60.00 of step 8"
    scores.accuracies["test"] = [70.0, 10.0]
    result = run(RECIPE.replace(patience=3), tmp_path, quiet=True)
    assert (result["status"], result["reason"], result["step"]) == ("finished", None, 24)
    assert (result["best_accuracy"], result["best_step"]) == (70.0, 20)


@as_users_run_it
def test_a_run_out_of_time_is_saved_and_resumes_in_the_same_bits(tmp_path, capsys):
    recipe, lines = RECIPE.replace(epochs=2, log_every=1), []
    run(recipe, tmp_path / "whole", quiet=True)
    late = time.perf_counter() - 60 * 10
    cut = run(recipe.replace(max_minutes=10), tmp_path / "cut", quiet=True, report=lines.append, started=late)
    assert (cut["status"], cut["reason"], cut["signal"], cut["step"]) == ("stopped", "max_minutes", None, 1)
    assert lines == [
        "10 minutes have passed: stopped at step 1, which is saved; run the same command to resume",
    ]
    run(recipe.replace(max_minutes=10), tmp_path / "cut", quiet=True, report=str)
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")
    flags = ["--mesh", "data=1", "--quiet", "--json", "--max-minutes", "1e-9"]
    assert main(["train", "digits", "--run-dir", str(tmp_path / "cli"), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "stopped"


# --- validation and test --------------------------------------------------------------------------------------------


@as_users_run_it
def test_validation_selects_and_the_test_set_is_evaluated_once_at_the_end(tmp_path, scores):
    scores.accuracies = {"validation": [50.0, 90.0, 60.0], "test": [61.0, 91.0]}
    recipe = RECIPE.replace(validation=0.25, epochs=3)
    result = run(recipe, tmp_path, quiet=True)
    assert scores.asked == [(3, "validation"), (6, "validation"), (9, "validation"), (9, "test"), (6, "test")]
    assert result == run(recipe, tmp_path, quiet=True)  # finished: nothing is evaluated again
    expected = {"split": "validation", "best_metric": "validation_accuracy", "best_accuracy": 90.0, "best_step": 6}
    expected |= {"validation_accuracy": 60.0, "test_accuracy": 61.0, "best_test_accuracy": 91.0}
    assert {name: result[name] for name in expected} == expected
    logged = [(record["step"], record["split"]) for record in read_metrics(tmp_path) if record["split"] != "train"]
    assert logged == [(3, "validation"), (6, "validation"), (9, "validation"), (9, "test")]


@as_users_run_it
def test_an_interrupted_run_has_not_seen_the_test_set(tmp_path, scores):
    scores.accuracies["validation"] = [50.0]
    late = time.perf_counter() - 100
    result = run(RECIPE.replace(validation=0.25, max_minutes=1), tmp_path, quiet=True, report=str, started=late)
    assert (result["test_accuracy"], result["best_test_accuracy"], result["best_step"]) == (None, None, None)


@as_users_run_it
def test_steps_under_way_are_not_the_time_of_an_evaluation(tmp_path, monkeypatch):
    step = Training.step
    slow = jax.jit(lambda x: jax.pure_callback(lambda x: (time.sleep(1.5), np.asarray(x))[1], x, x))

    def slow_step(self, state, i, **options):
        state, metrics = step(self, state, i, **options)
        return (state._replace(step=slow(state.step)) if i == 3 else state), metrics

    def evaluate(self, state, split="test"):
        return {"loss": 1.0, "accuracy": float(state.step)}

    monkeypatch.setattr(Training, "step", slow_step)
    monkeypatch.setattr(Training, "evaluate", evaluate)
    run(RECIPE.replace(epochs=1), tmp_path, quiet=True)
    (record,) = (record for record in read_metrics(tmp_path) if record["split"] == "test")
    assert record["accuracy"] == 4.0 and record["evaluation_seconds"] < 1


# --- divergence -----------------------------------------------------------------------------------------------------


@as_users_run_it
@pytest.mark.parametrize(("loss", "shown"), [(6.5e14, 6.5e14), (math.nan, None)])
def test_a_diverged_run_is_not_finished(tmp_path, scores, capsys, loss, shown):
    scores.accuracies["test"], scores.loss = [10.0], loss
    command = ["train", "digits", "--run-dir", str(tmp_path), "--mesh", "data=1", "--epochs", "1", "--quiet", "--json"]
    for _ in range(2):  # nor is it when the same command is given again
        assert main(command) == 1
        output, errors = capsys.readouterr()
        result = json.loads(output, parse_constant=pytest.fail)
        assert (result["status"], result["test_loss"]) == ("diverged", shown)
        words = f"the run has diverged: its test loss is {loss:.4g}, and that of uniform predictions is 2.30. Lower"
        assert words in errors


@as_users_run_it
@pytest.mark.parametrize("method", ["sam_k", "look_sam"])
def test_a_rule_that_never_acts_is_reported_and_shown(tmp_path, monkeypatch, method):
    shown, lines = [], []
    monkeypatch.setattr(Progress, "update", lambda self, step, **numbers: shown.append(numbers.get("fell_back")))
    recipe = RECIPE.replace(method=method, k=2, log_every=4, epochs=2, eval_every=6)
    run(recipe.replace(rho=1e30), tmp_path / "large", quiet=True, report=lines.append)
    assert [line for line in lines if line.startswith("warning: in its first 3 refreshes the rule fell back")] == lines
    assert len(lines) == 1 and "lower --rho" in lines[0]
    assert shown == [100.0] * 2
    lines.clear()
    shown.clear()
    run(recipe, tmp_path / "usual", quiet=True, report=lines.append)
    assert lines == [] and shown == [None] * 2


# --- data that is gone ----------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    """A recipe for a folder of pictures of all sizes, which are read as they are needed."""
    folder, random = tmp_path / "pictures", np.random.default_rng(0)
    for split, count in (("train", 60), ("val", 5)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i}.jpg")
    return Recipe(dataset="folder", data_dir=str(folder), image_size=16, batch_size=6, epochs=2, mesh="data=1")


@as_users_run_it
@pytest.mark.parametrize("split", ["train", "val"])
def test_data_that_is_removed_costs_no_step(tmp_path, monkeypatch, pictures, split):
    folder, moved, step = tmp_path / "pictures", tmp_path / "moved", Training.step

    def removing(self, state, i, **options):
        if i == 3 and folder.exists() and not moved.exists():
            shutil.move(folder / split, moved)
        return step(self, state, i, **options)

    run(pictures, tmp_path / "whole", quiet=True)
    monkeypatch.setattr(Training, "step", removing)
    with pytest.raises(RunError, match="the data cannot be read any more after step") as failure:
        run(pictures, tmp_path / "cut", quiet=True)
    [saved] = (path.name for path in (tmp_path / "cut" / "checkpoints").iterdir())
    assert f"after step {saved} (" in str(failure.value) and f"/{split}/" in str(failure.value)
    assert f"; the checkpoint of step {saved} is good in {tmp_path / 'cut'}. Bring the data back" in str(failure.value)
    assert int(saved) > 3 if split == "train" else saved == "20"
    shutil.move(moved, folder / split)
    assert run(pictures, tmp_path / "cut", quiet=True, report=str)["status"] == "finished"
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")


# --- signals --------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_handlers():
    """Signals that this test may send to itself; the handlers before it come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_becomes_a_flag(number):
    seen = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts with it ignored
    signal.signal(number, lambda *_: seen.append("old"))
    with Interrupts() as interrupts:
        assert interrupts.signal is None
        os.kill(os.getpid(), number)
        assert interrupts.signal == number
        os.kill(os.getpid(), signal.SIGTERM)  # no hurry is read into a second SIGTERM
        assert interrupts.signal == number and seen == []
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), number)
    assert seen == ["old"]


@pytest.mark.usefixtures("own_handlers")
def test_ignored_signals_stay_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.signal is None
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_other_threads_leave_the_handlers_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Interrupts() as interrupts:
            seen.append((signal.getsignal(signal.SIGINT), interrupts.signal))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, None)] and signal.getsignal(signal.SIGINT) == before
