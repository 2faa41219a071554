"""A run that is killed, wherever, ends in the same bits as one that is not."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np

from looksam.trainer.run_folder.checkpoints import Checkpoints
from looksam.trainer.run_folder.run_directory import read_recipe
from looksam.trainer.training import Training

FLAGS = ["--batch-size", "100", "--epochs", "40", "--k", "3", "--log-every", "7", "--checkpoint-every", "20"]
TESTS_SET = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in TESTS_SET}
COMMAND = [
    sys.executable,
    "-m",
    "looksam.cli",
    "train",
    "digits-noise30",
    *FLAGS,
    "--eval-every",
    "10",
    "--json",
    "--quiet",
]


def start(folder):
    """Start a run that shares compiled programs with the others in its parent folder."""
    command = [*COMMAND, "--run-dir", str(folder)]
    environment = ENVIRONMENT | {"XDG_CACHE_HOME": str(folder.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def lines(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def stop_after(process, folder, count, with_signal):
    """Send the signal once metrics.jsonl has so many lines."""
    deadline = time.monotonic() + 120
    while len(lines(folder)) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()
    process.send_signal(with_signal)
    process.communicate(timeout=60)
    return process.returncode


def final_state(folder):
    """The step and every array of the newest checkpoint."""
    training = Training(read_recipe(folder).replace(mesh="data=1"))
    checkpoints = Checkpoints(folder / "checkpoints", keep=2, read_only=True)
    step, state, _ = checkpoints.restore(training.programs.abstract_state)
    checkpoints.close()
    return step, [np.asarray(x) for x in jax.tree.leaves(state)]


def programs(folder):
    """The compiled training steps in the cache."""
    return sorted(path.name for path in (folder / "looksam" / "xla").glob("jit_step-*"))


def without_times(folder):
    kept = []
    for line in lines(folder):
        values = json.loads(line)
        kept.append({k: v for k, v in values.items() if not k.endswith(("_seconds", "_per_second"))})
    return kept


def test_killed_and_stopped_runs_end_in_the_same_bits(tmp_path: pathlib.Path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    output, errors = start(whole).communicate(timeout=180)
    result = json.loads(output)
    assert result["status"] == "finished", errors
    compiled = programs(tmp_path)
    assert compiled
    for count, with_signal, code in [(3, signal.SIGKILL, -9), (14, signal.SIGKILL, -9), (24, signal.SIGTERM, 143)]:
        assert stop_after(start(cut), cut, count, with_signal) == code
    output, errors = start(cut).communicate(timeout=180)
    assert "resuming from step" in errors
    resumed = json.loads(output)
    assert resumed | {"run_dir": ""} == result | {"run_dir": ""}
    assert without_times(cut) == without_times(whole)
    (step, ours), (whole_step, theirs) = final_state(cut), final_state(whole)
    assert step == whole_step == 240
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert programs(tmp_path) == compiled  # so the second run loaded what the first had compiled
