"""TensorBoard and Weights & Biases: only on request, and reported before any time is spent if they are missing."""

import importlib.util
import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from looksam.cli import main
from looksam.trainer import RunError, run
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.metrics import MetricsLog
from looksam.trainer.run_folder.trackers import TensorBoard

RECIPE = Recipe(mesh="data=1", batch_size=300, epochs=2, log_every=1)  # 2 steps per epoch

WANDB = """
import json, pathlib

class Run:
    def __init__(self, dir, **settings):
        self.file = pathlib.Path(dir) / "sent.jsonl"
        self.log(settings | {"config": settings["config"]["batch_size"]})

    def define_metric(self, name, step_metric):
        self.log([name, step_metric])

    def log(self, values):
        with self.file.open("a") as file:
            print(json.dumps(values), file=file)

    def finish(self):
        self.log("finished")

def init(**settings):
    if settings["project"] == "offline":
        raise OSError("no network\\nmore")
    return Run(**settings)
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """A stand-in for the package, which writes what it is sent to ``sent.jsonl`` in the run's folder."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(tmp_path / "packages")


def curve(directory, tag):
    """What TensorBoard's own reader makes of the event files."""
    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_tensorboard_reads_the_event_files_of_a_resumed_run(tmp_path):
    log = MetricsLog(tmp_path, trackers=[TensorBoard(tmp_path)])
    for step in range(1, 7):
        log.write(step, "train", {"loss": step / 2, "images_per_second": 10.0})
    log.close()
    assert curve(tmp_path, "train/loss") == [(step, step / 2) for step in range(1, 7)]
    assert len(curve(tmp_path, "train/images_per_second")) == 6
    log = MetricsLog(tmp_path, trackers=[TensorBoard(tmp_path)])
    log.cut_back(2)
    log.write(3, "test", {"loss": 0.0})
    log.close()
    assert curve(tmp_path, "train/loss") == [(1, 0.5), (2, 1.0)]
    assert curve(tmp_path, "test/loss") == [(3, 0.0)]


@pytest.mark.usefixtures("as_users_run_it")
def test_event_files_come_by_flag_alone_and_the_flag_is_free_to_change(tmp_path):
    run(RECIPE.replace(steps=2), tmp_path, quiet=True)
    assert list(tmp_path.glob("events*")) == []
    run(RECIPE.replace(tensorboard=True), tmp_path, quiet=True)
    accuracies = [value for tag in ("train/accuracy", "test/accuracy") for _, value in curve(tmp_path, tag)]
    assert len(accuracies) == 3 and all(1 < value < 100 for value in accuracies)  # in percent


@pytest.mark.usefixtures("as_users_run_it", "wandb")
def test_weights_and_biases_gets_the_same_numbers_and_one_run(tmp_path):
    for steps in (2, 4):
        run(RECIPE.replace(steps=steps, wandb="flat"), tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "sent.jsonl").read_text().splitlines()]
    (first, second) = (line for line in lines if "project" in line)
    assert first == second and first["project"] == "flat" and first["config"] == 300
    assert (first["name"], first["resume"]) == ("run", "allow")
    assert lines.count(["*", "step"]) == lines.count("finished") == 2 and lines[-1] == "finished"
    sent = [(line["step"], "test/accuracy" in line) for line in lines if isinstance(line, dict) and "step" in line]
    assert sent == [(1, False), (2, False), (2, True), (3, False), (4, False), (4, True)]


@pytest.mark.usefixtures("as_users_run_it", "wandb")
def test_a_tracker_that_cannot_start_says_so_before_the_first_step(tmp_path):
    with pytest.raises(RunError, match=r"Biases could not be started \(no network\)\. Nothing was trained; .*offline"):
        run(RECIPE.replace(wandb="offline"), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags", [["--tensorboard"], ["--wandb", "flat"]])
def test_a_missing_package_is_named_at_once(tmp_path, monkeypatch, capsys, flags):
    name = flags[0].removeprefix("--")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == name else find(module))
    assert main(["train", "digits", "--run-dir", str(tmp_path / "run"), *flags]) == 1
    message = f"looksam: --{name} needs {name}, which is not installed: pip install 'looksam[{name}]'\n"
    assert capsys.readouterr().err == message and not (tmp_path / "run").exists()
