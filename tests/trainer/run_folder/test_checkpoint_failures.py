"""Which checkpoints stay, and what is left when writing one goes wrong."""

import gc
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from looksam.trainer.run_folder.checkpoints import Checkpoints
from looksam.trainer.run_folder.run_directory import RunError


def names(directory: pathlib.Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_last_and_the_best_are_kept(tmp_path):
    scores = {1: 0.5, 2: 0.9, 3: float("nan"), 4: 0.9, 5: None, 6: 0.1}
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, score in scores.items():
        checkpoints.save(step, {"a": np.arange(step)}, {}, None if score is None else {"test_accuracy": score})
    checkpoints.close()
    assert names(tmp_path) == {"2", "5", "6"}  # the first of equals; NaN is never the best
    checkpoints = Checkpoints(tmp_path, keep=1)  # the scores are on disk
    assert (checkpoints.best_step(), checkpoints.latest_step()) == (2, 6)
    assert checkpoints.restore({"a": np.arange(2)}, 2)[0] == checkpoints.restore({"a": np.arange(2)}, "best")[0] == 2
    with pytest.raises(RunError, match="has no checkpoint of step 3; the steps there are: 2, 5, 6"):
        checkpoints.restore({"a": np.arange(2)}, 3)
    checkpoints.save(7, {"a": np.arange(7)}, {}, {"other": 1.0})
    checkpoints.wait()
    assert names(tmp_path) == {"2", "7"}
    checkpoints.save(8, {"a": np.arange(8)}, {}, {"test_accuracy": 1.0})
    checkpoints.close()
    assert names(tmp_path) == {"8"}


def test_nothing_saved_is_none(tmp_path):
    checkpoints = Checkpoints(tmp_path / "new" / "folder", keep=1)
    assert checkpoints.latest_step() is None and checkpoints.best_step() is None
    assert checkpoints.restore({"a": np.zeros(1)}) is None
    with pytest.raises(RunError, match="has no checkpoint with a test_accuracy; the steps there are: none"):
        checkpoints.restore({"a": np.zeros(1)}, "best")
    checkpoints.close()
    reader = Checkpoints(tmp_path / "elsewhere", keep=1, read_only=True)
    assert reader.restore({"a": np.zeros(1)}) is None and not (tmp_path / "elsewhere").exists()
    with pytest.raises(RunError, match="reading only"):
        reader.save(1, {"a": np.zeros(1)}, {})
    reader.close()


def test_steps_go_up(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(5, {"a": np.zeros(1)}, {"n": 1})
    checkpoints.save(5, {"a": np.zeros(1)}, {"n": 2})  # e.g. SIGTERM right after a checkpoint
    with pytest.raises(RunError, match=r"step 5, and step 4 comes before"):
        checkpoints.save(4, {"a": np.zeros(1)}, {})
    assert checkpoints.restore({"a": np.zeros(1)})[2] == {"n": 1}
    checkpoints.close()


@pytest.mark.parametrize(
    ("state", "meta", "error", "words"),
    [
        ({"lr": 0.1}, {}, TypeError, "'lr' of the state is a float"),
        ({"a": np.array([None])}, {}, TypeError, "'a' of the state holds Python objects"),
        ({"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)}, {}, ValueError, "two leaves .* called 'a/b'"),
        ({"a": np.zeros(1)}, {"x": np.zeros(1)}, TypeError, "meta cannot be written as JSON"),
    ],
)
def test_what_cannot_be_saved_is_reported_at_once(tmp_path, state, meta, error, words):
    checkpoints = Checkpoints(tmp_path, keep=1)
    with pytest.raises(error, match=words):
        checkpoints.save(1, state, meta)
    checkpoints.close()
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)


KILLED = """
import os, pathlib, signal, sys
import numpy as np
from looksam.trainer.run_folder.checkpoints import Checkpoints

directory, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
checkpoints = Checkpoints(directory, keep=2)

def killing(at, work):
    def working(*arguments, **options):
        if moment == at and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **options)
    return working

checkpoints._handler.finalize = killing("arrays", checkpoints._handler.finalize)
os.rename = os.replace = killing("all", os.rename)
for step in (1, 2):
    checkpoints.save(step, {"a": np.full(1000, step)}, {})
    checkpoints.wait()
"""


@pytest.mark.parametrize("moment", ["arrays", "all"])
def test_a_kill_while_writing_leaves_the_one_before(tmp_path, moment):
    """Killed when only the arrays are written, and when all is written but not yet in place."""
    directory = tmp_path / "checkpoints"
    child = subprocess.run([sys.executable, "-c", KILLED, str(directory), moment], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    (leftover,) = names(directory) - {"1"}
    assert leftover.startswith("2.unfinished")
    reader = Checkpoints(directory, keep=2, read_only=True)
    assert reader.latest_step() == 1 and leftover in names(directory)
    reader.close()
    lines: list[str] = []
    checkpoints = Checkpoints(directory, keep=2, report=lines.append)
    assert names(directory) == {"1"} and len(lines) == 1 and "unfinished checkpoint of step 2" in lines[0]
    step, state, _ = checkpoints.restore({"a": np.zeros(1000, np.int64)})
    assert step == 1 and (state["a"] == 1).all()
    checkpoints.close()


def test_a_kill_while_deleting_leaves_no_half(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        checkpoints.save(step, {"a": np.zeros(1)}, {})
    checkpoints.close()
    (tmp_path / "1").rename(tmp_path / "1.discarded")
    lines: list[str] = []
    Checkpoints(tmp_path, keep=2, report=lines.append).close()
    assert names(tmp_path) == {"2"} and lines == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB, where the system lets one be mounted."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_a_full_disk_stops_the_run_and_leaves_what_was_saved(small_disk, caplog):
    noise = {str(i): np.frombuffer(np.random.default_rng(i).bytes(2**16), np.uint8) for i in range(8)}
    checkpoints = Checkpoints(small_disk / "checkpoints", keep=2)
    checkpoints.save(1, noise, {})
    checkpoints.wait()
    (small_disk / "filler").write_bytes(bytes(2**20))
    checkpoints.save(2, noise, {})
    with pytest.raises(
        RunError, match=r"step 2 could not be written .*No space left.*\. The checkpoint of step 1 is safe\. Make room"
    ):
        checkpoints.wait()
    checkpoints.wait()  # reported once
    assert names(small_disk / "checkpoints") == {"1"}
    (small_disk / "filler").unlink()
    checkpoints.save(3, noise, {})
    assert checkpoints.restore(noise)[0] == 3
    checkpoints.close()
    gc.collect()
    assert caplog.records == []  # nothing is logged in addition


def test_a_failed_write_is_reported_by_the_next_save_and_by_close(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)

    async def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints._handler, "async_save", fail)
    checkpoints.save(1, {"a": np.zeros(1)}, {})
    with pytest.raises(RunError, match=r"step 1 .*No space left on device.* No checkpoint is there yet"):
        checkpoints.save(2, {"a": np.zeros(1)}, {})
    checkpoints.save(2, {"a": np.zeros(1)}, {})
    with pytest.raises(RunError, match="step 2 .*No space left"):
        checkpoints.close()


def test_an_unwritable_folder_stops_the_run_at_once(tmp_path, small_disk):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written to .*file/checkpoints .*Nothing was started"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(RunError, match="Read-only file system"):
        Checkpoints(small_disk, keep=1)
