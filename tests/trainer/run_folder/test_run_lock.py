"""A run's folder: whose it is, from when on, and one process at a time."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

from looksam.cli import main
from looksam.trainer import RunError, evaluate_run, run
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import check_recipe, claim, read_recipe, write_recipe
from looksam.trainer.run_folder.run_lock import working_in
from looksam.trainer.training import Training

RECIPE = Recipe(mesh="data=1", batch_size=300, epochs=1)  # 2 steps

HOLDING = """
import pathlib, sys
from looksam.trainer.run_folder.run_lock import working_in

with working_in(pathlib.Path(sys.argv[1]), print):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that trains, as far as the lock can tell."""
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("as_users_run_it")
def test_a_run_that_was_refused_leaves_the_folder_free(tmp_path, capsys):
    command = ["train", "digits", "--run-dir", str(tmp_path / "new" / "run"), "--epochs", "1", "--mesh", "data=1"]
    assert main([*command, "--batch-size", "5000"]) == 1
    assert "5000" in capsys.readouterr().err and not (tmp_path / "new" / "run").exists()
    assert main([*command, "--batch-size", "300"]) == 0, capsys.readouterr().err
    assert main([*command, "--batch-size", "200"]) == 1
    assert "holds a run of another recipe (--batch-size: 300 there, 200 here)" in capsys.readouterr().err


@pytest.mark.usefixtures("as_users_run_it")
def test_a_folder_belongs_to_a_run_from_its_first_step_on(tmp_path, monkeypatch):
    taken, step = [], Training.step

    def watched(self, state, i, **options):
        taken.append({path.name for path in tmp_path.iterdir()} & {"recipe.json", "data.json"})
        return step(self, state, i, **options)

    monkeypatch.setattr(Training, "step", watched)
    (tmp_path / "mine.txt").write_text("kept")
    run(RECIPE, tmp_path, quiet=True)
    assert taken == [set(), {"recipe.json", "data.json"}]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("recipe.json", "data.json", "metrics.jsonl", "checkpoints", "mine.txt")
    }


@pytest.mark.usefixtures("as_users_run_it")
def test_a_second_process_is_refused_and_readers_are_not(tmp_path, holder):
    with pytest.raises(RunError, match=rf"run is in use: process {holder.pid} on \S+ trains there"):
        run(RECIPE, tmp_path / "run", quiet=True)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert run(RECIPE, tmp_path / "run", quiet=True)["status"] == "finished"
    with working_in(tmp_path / "run", print):
        assert evaluate_run(tmp_path / "run")["step"] == 2
        with pytest.raises(RunError, match=rf"process {os.getpid()}"), working_in(tmp_path / "run", print):
            pass
    assert not (tmp_path / "run" / "train.lock").exists()


def test_a_lock_that_names_no_process_holds_too(tmp_path, holder):
    (tmp_path / "run" / "train.lock").write_text("half of")
    with pytest.raises(RunError, match="in use: another process trains there"), working_in(tmp_path / "run", print):
        pass


def test_a_file_system_without_locks_is_reported_and_used(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lines = []
    with working_in(tmp_path, lines.append):
        pass
    assert lines == [
        f"{tmp_path / 'train.lock'} cannot be locked (No locks available): see to it that no other process trains in "
        f"{tmp_path}"
    ]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    folder, words = tmp_path / "file" / "run", "cannot write to .*file/run: Not a directory; pass another --run-dir"
    with pytest.raises(RunError, match=words), working_in(folder, print):
        pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"version": 2, "rec', r"is damaged: it is not JSON .*; restore it from a copy, or start in a new --run-dir"),
        ("\xff", "is damaged: it is not JSON"),
        ('{"version": "two"}', "is damaged: its format version is 'two'"),
        ('{"version": 2}', "is damaged: it holds no recipe"),
        ('{"version": 2, "recipe": []}', "is damaged.*a recipe is a JSON object"),
        ('{"version": 2, "recipe": {"rho": "x"}}', "is damaged.*rho='x' has the wrong type"),
        ('{"version": 2, "recipe": {"rhoo": 1}}', "is damaged, or of another looksam: setting 'rhoo' is unknown"),
        ("[]", "has no format version"),
    ],
)
def test_a_damaged_recipe_is_named_with_its_path(tmp_path, capsys, text, words):
    path = tmp_path / "recipe.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=rf"{path} {words}"):
        read_recipe(tmp_path)
    for command in (["train", "digits", "--run-dir"], ["eval"], ["analyze"]):
        assert main([*command, str(tmp_path)]) == 1
        assert capsys.readouterr().err.startswith(f"looksam: {path} ")


def test_a_run_of_before_can_be_read_and_not_resumed(tmp_path, capsys):
    write_recipe(tmp_path, RECIPE)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}))
    assert read_recipe(tmp_path) == RECIPE
    assert main(["train", "digits", "--run-dir", str(tmp_path)]) == 1
    assert "has format version 1, written by an older looksam, and this one reads version 2" in capsys.readouterr().err


def test_what_does_not_change_a_step_may_change(tmp_path):
    claim(tmp_path, RECIPE)
    free = {"patience": 3, "max_minutes": 1.5, "tensorboard": True, "wandb": "flat", "steps": 7, "workers": 2}
    assert read_recipe(tmp_path) == RECIPE
    check_recipe(tmp_path, RECIPE.replace(**free))
    with pytest.raises(RunError, match="another recipe"):
        check_recipe(tmp_path, RECIPE.replace(rho=0.2, **free))
