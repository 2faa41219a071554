"""Two processes in one run: the same training as one, and an end for both when one of them goes."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import numpy as np
import optax
import process_worker
import pytest
import spread
from PIL import Image

from looksam.trainer import distributed, run
from looksam.trainer.parallel import SingleDeviceLayout
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.checkpoints import Checkpoints
from looksam.trainer.run_folder.run_directory import read_recipe
from looksam.trainer.training import Training

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
STARTED, ENDED = 300, 60  # seconds, on the slowest machine: to do some work, and to end when another process has exited
LAST_STEP, EVERY = 110, 8  # a checkpoint lies in the middle of the three steps that share a second gradient
TRAIN = [
    *("train", "digits-noise30", "--mesh", "fsdp=2", "--batch-size", "120", "--epochs", "60"),
    *("--steps", str(LAST_STEP), "--checkpoint-every", str(EVERY), "--k", "3", "--log-every", "1"),
    *("--eval-every", "60", "--json", "--quiet"),
]


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


class Pair:
    """Two processes, that see ``devices`` devices each. None of them outlives the block."""

    def __init__(self, folder: pathlib.Path, arguments, devices: int = 1) -> None:
        folder.mkdir(exist_ok=True)
        self.files = [[folder / f"{index}.{name}" for name in ("out", "err")] for index in (0, 1)]
        flags = f"{QUICK} --xla_force_host_platform_device_count={devices}"
        address = f"127.0.0.1:{free_port()}"
        self.processes = []
        for index, (out, err) in enumerate(self.files):
            command = [sys.executable, *map(str, arguments(address, index))]
            with out.open("w") as output, err.open("w") as errors:
                environment = os.environ | {"XLA_FLAGS": flags}
                self.processes.append(subprocess.Popen(command, stdout=output, stderr=errors, env=environment))

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def errors(self) -> str:
        return "\n".join(err.read_text() for _, err in self.files)

    def ended(self, seconds: float) -> list[Ended]:
        """How both ended. TimeoutExpired where one has not."""
        codes = [process.wait(seconds) for process in self.processes]
        texts = [[file.read_text() for file in files] for files in self.files]
        return [Ended(code, *text) for code, text in zip(codes, texts, strict=True)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def training(folder: pathlib.Path, changes=((), ())) -> Pair:
    """``looksam train`` by two processes, in one folder."""

    def arguments(address, index):
        config = ["--coordinator", address, "--process-count", 2, "--process-index", index]
        return ["-m", "looksam.cli", *TRAIN, *config, "--run-dir", folder / "run", *changes[index]]

    return Pair(folder, arguments)


def saved(run_dir: pathlib.Path) -> list[int]:
    return sorted(int(path.name) for path in (run_dir / "checkpoints").glob("*") if path.name.isdecimal())


def logged(run_dir: pathlib.Path) -> list[dict]:
    """The lines of metrics.jsonl, without the times."""
    path = run_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [{k: v for k, v in line.items() if not k.endswith(("_seconds", "_per_second"))} for line in lines]


def arrays(run_dir: pathlib.Path):
    """The state of the newest checkpoint, on the host."""
    recipe = read_recipe(run_dir).replace(mesh="data=1")
    with contextlib.closing(Checkpoints(run_dir / "checkpoints", keep=2, read_only=True)) as checkpoints:
        _, state, _ = checkpoints.restore(Training(recipe).programs.abstract_state)
    return jax.tree.map(np.asarray, state)


def stop_under_way(pair: Pair, run_dir: pathlib.Path, index: int, number: int) -> list[Ended]:
    """Send a process a signal when there is a new checkpoint, and some steps after it are in metrics.jsonl."""
    before, deadline = max(saved(run_dir), default=0), time.monotonic() + STARTED
    resumed = before == 0
    while time.monotonic() < deadline and all(process.poll() is None for process in pair.processes):
        resumed = resumed or "resuming from step" in pair.errors()  # before that the file has lines of the last time
        newest = max(saved(run_dir), default=0)
        if resumed and newest > before and logged(run_dir)[-1]["step"] > newest + 1:
            break
        time.sleep(0.005)
    assert all(process.poll() is None for process in pair.processes), pair.errors()
    pair.processes[index].send_signal(number)
    return pair.ended(ENDED)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happens to: its folder, and how the processes ended."""
    folder = tmp_path_factory.mktemp("whole")
    with training(folder) as pair:
        return folder, pair.ended(STARTED)


class Stop(NamedTuple):
    index: int  # of the process that got the signal
    signal: int
    ended: list[Ended]
    steps: list[int]  # of the checkpoints


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run in which each process is killed once and one is asked to stop: its folder, the stops, and its end."""
    folder, stops = tmp_path_factory.mktemp("cut"), []
    for index, number in [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGTERM)]:
        with training(folder) as pair:
            ended = stop_under_way(pair, folder / "run", index, number)
            stops.append(Stop(index, number, ended, saved(folder / "run")))
    with training(folder) as pair:
        return folder, stops, pair.ended(STARTED)


def test_the_first_process_alone_reports(whole):
    folder, (first, second) = whole
    assert (first.code, second.code) == (0, 0), first.errors + second.errors
    (line,) = first.output.splitlines()
    assert json.loads(line)["status"] == "finished" and json.loads(line)["step"] == LAST_STEP
    assert second.output == ""
    assert [line["step"] for line in logged(folder / "run") if line["split"] == "train"] == [*range(1, LAST_STEP + 1)]


def test_each_process_writes_its_own_shards(whole):
    """The first layer's kernel and its momentum are split in two: each process writes half of their bytes."""
    folder, _ = whole
    state = folder / "run" / "checkpoints" / str(LAST_STEP) / "state"
    first, second = (
        sum(path.stat().st_size for path in (state / f"ocdbt.process_{index}").rglob("*") if path.is_file())
        for index in (0, 1)
    )
    assert second > 10_000 and 0.5 < first / second < 2


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_process_ends_the_other(cut, number):
    _, stops, _ = cut
    stop = stops[number]
    other = 1 - stop.index
    assert stop.ended[stop.index].code == -signal.SIGKILL
    assert stop.ended[other].code == 1
    errors = stop.ended[other].errors
    assert f"looksam: process {other} of 2: " in errors and "exited" in errors
    assert "Start all processes again with the same command to resume from the last checkpoint." in errors
    assert "Traceback" not in errors
    assert stop.ended[0].output == stop.ended[1].output == ""


def test_a_process_that_is_asked_to_stop_stops_both_at_one_step(cut):
    _, stops, _ = cut
    first, second = stops[2].ended
    assert (first.code, second.code) == (143, 143), first.errors + second.errors
    result = json.loads(first.output)
    assert (result["status"], result["signal"]) == ("interrupted", signal.SIGTERM)
    assert result["step"] == stops[2].steps[-1] < LAST_STEP
    assert second.output == ""
    assert f"stopped at step {result['step']}, which is saved" in first.errors


def test_stopped_runs_end_in_the_same_bits(whole, cut):
    (whole_folder, (whole_end, _)), (cut_folder, stops, (cut_end, second)) = whole, cut
    assert (cut_end.code, second.code) == (0, 0), cut_end.errors + second.errors
    assert f"resuming from step {stops[2].steps[-1]} in" in cut_end.errors
    assert json.loads(cut_end.output) | {"run_dir": ""} == json.loads(whole_end.output) | {"run_dir": ""}
    assert logged(cut_folder / "run") == logged(whole_folder / "run")
    ours, theirs = arrays(cut_folder / "run"), arrays(whole_folder / "run")
    assert ours.step == LAST_STEP and saved(cut_folder / "run")[-1] == LAST_STEP
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.usefixtures("as_users_run_it")
def test_every_test_digit_counts_once(whole):
    """The test scores of two processes, against the mean over all images at once."""
    folder, (end, _) = whole
    state, alone = arrays(folder / "run"), Training(Recipe(dataset="digits", mesh="data=1"))
    test, result = alone.dataset.test, json.loads(end.output)
    assert len(test) == 1197
    images = (test.images / np.float32(255) - np.float32(alone.dataset.mean)) / np.float32(alone.dataset.std)
    logits, _ = alone.programs.model.apply(state.params, state.stats, images, train=False)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, test.labels)
    np.testing.assert_allclose(result["test_loss"], np.mean(losses), rtol=1e-5)
    assert result["test_accuracy"] == 100 * np.sum(np.argmax(logits, -1) == test.labels) / 1197


@pytest.mark.usefixtures("as_users_run_it")
def test_one_process_resumes_a_run_of_two(whole, tmp_path):
    """From the checkpoint before the last, without a mesh: the same parameters, next to how far they moved."""
    folder, _ = whole
    alone = shutil.copytree(folder / "run", tmp_path / "run")
    shutil.rmtree(alone / "checkpoints" / str(LAST_STEP))
    start = arrays(alone)
    assert start.step == LAST_STEP // EVERY * EVERY
    recipe = read_recipe(alone).replace(mesh="data=1", microbatch=60)
    run(recipe, alone, report=lambda _: None, quiet=True)
    ours, theirs = arrays(alone), arrays(folder / "run")
    assert ours.step == LAST_STEP
    norm = lambda a, b: optax.tree.norm(jax.tree.map(np.subtract, a, b))
    moved, apart = norm(theirs.params, start.params), norm(ours.params, theirs.params)
    assert apart < 1e-5 * moved  # some eighty times float32's rounding, over six steps


def test_processes_with_other_settings_do_not_train(tmp_path):
    with training(tmp_path, changes=((), ("--rho", "0.3"))) as pair:
        first, second = pair.ended(STARTED)
    assert (first.code, second.code) == (1, 1)
    assert "process 0 has other settings (rho: 0.4 there, 0.3 here); start all processes" in second.errors
    assert "another process has other settings than this one; start all processes" in first.errors
    assert "Traceback" not in first.errors + second.errors
    assert not (tmp_path / "run").exists()  # it may have been the first one that was wrong


def test_a_folder_that_is_not_shared_is_refused_at_once(tmp_path):
    with training(tmp_path, changes=((), ("--run-dir", tmp_path / "other"))) as pair:
        first, second = pair.ended(STARTED)
    assert (first.code, second.code) == (1, 1)
    for errors in (first.errors, second.errors):
        assert "is not one folder for all processes: process 1 of 2 cannot see what process 0 writes there" in errors
        assert "Traceback" not in errors
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "run").exists()


PEER_EXITED = [
    "UNAVAILABLE: failed to connect to all addresses",
    "DEADLINE_EXCEEDED: Barrier timed out",
    "INTERNAL: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:33811",
    "ABORTED: The following tasks are unhealthy (stopped sending heartbeats)",
    "INTERNAL: Coordination service agent is not connected",
]
OWN_FAULT = [
    "INVALID_ARGUMENT: Executable expected parameter 0 of size 4 but got buffer with size 8",
    "INTERNAL: Mosaic failed to compile a kernel",
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes",
]


class ExitedError(Exception):
    """In place of the process's end."""


@pytest.mark.parametrize("text", PEER_EXITED + OWN_FAULT)
def test_only_a_failed_collective_is_the_fault_of_another_process(monkeypatch, capsys, text):
    """Whatever else JAX raises keeps its own message and traceback."""

    def end(code):
        raise ExitedError(code)

    def computed():
        raise jax.errors.JaxRuntimeError(text)

    monkeypatch.setattr(distributed.os, "_exit", end)
    try:
        computed()
    except jax.errors.JaxRuntimeError as error:
        with pytest.raises(ExitedError, match="1"):
            distributed._end_by(error)
    errors = capsys.readouterr().err
    assert text in errors
    assert ("another process of this run has exited" in errors) == (text in PEER_EXITED)
    assert ("Start all processes again" in errors) == (text in PEER_EXITED)
    assert ("in computed" in errors) == (text in OWN_FAULT)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of small pictures, more than a batch, in numbers that nothing divides."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, counts in {"train": (20, 17), "val": (14, 15)}.items():
        for name, count in zip(("cat", "dog"), counts, strict=True):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 256, (12 + i, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def found(pictures, tmp_path_factory):
    """What two processes of four devices came to."""
    script = process_worker.__file__
    with contextlib.closing(Checkpoints(pictures / "alone", keep=1)) as checkpoints:
        checkpoints.save(5, process_worker.numbers(5), {"n": 5})
    with Pair(
        tmp_path_factory.mktemp("worker"), lambda *config: [script, *config, pictures], process_worker.DEVICES
    ) as pair:
        ended = pair.ended(STARTED)
    assert [end.code for end in ended] == [0, 0], pair.errors()
    with np.load(pictures / "found.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def alone():
    """The runs on one device, unsplit."""
    with jax.numpy_dtype_promotion("standard"):
        return {rule: spread.train(recipe, SingleDeviceLayout()) for rule, recipe in process_worker.RULES.items()}


@pytest.mark.parametrize(("rule", "mesh", "microbatch"), process_worker.CASES)
def test_losses_and_state_are_those_of_one_device(found, alone, rule, mesh, microbatch):
    expected, name = alone[rule], f"{rule} {mesh} {microbatch}"
    assert expected.losses[0] - expected.losses[-1] > 1e-3  # the weights have moved
    np.testing.assert_allclose(found[f"{name}/losses"], expected.losses, rtol=0, atol=1e-9)
    for i, array in enumerate(jax.tree.leaves(expected.state)):
        assert found[f"{name}/{i}"].dtype == array.dtype
        np.testing.assert_allclose(found[f"{name}/{i}"].astype(float), array.astype(float), rtol=0, atol=1e-9)


def test_both_processes_save_restore_and_fail_together(found, pictures):
    """One of them fails to write, and a file of the newest checkpoint is damaged; see the worker."""
    first, second = (lines.splitlines() for lines in found["checkpoints/lines"])
    assert len(first) == len(second) == 3
    for lines, reason in ((first, "process 1: "), (second, "")):
        assert "the checkpoint of step 3 could not be written" in lines[0]
        assert f"({reason}[Errno 28] No space left on device). The checkpoint of step 2 is safe" in lines[0]
        assert "the checkpoint of step 4" in lines[1] and "ocdbt.process_1" in lines[1] and "SHA-256" in lines[1]
        assert lines[2] == "the checkpoint of step 2 is whole and is used instead"
    folder = pictures / "pair"
    assert {path.name for path in folder.iterdir()} == {"2", "4", "4.damaged"}
    with contextlib.closing(Checkpoints(folder, keep=2, read_only=True)) as checkpoints:
        for step, meta in ((2, 2), (4, 40)):
            expected = process_worker.numbers(step)
            _, state, read = checkpoints.restore(expected, step)  # in one process, as NumPy arrays
            assert read == {"n": meta}
            assert {name: array.tobytes() for name, array in state.items()} == {
                name: array.tobytes() for name, array in expected.items()
            }


def test_streamed_pictures_are_those_of_one_process(found, pictures):
    """Each process decodes its own part, and every test picture counts once: loss, hits and number, summed."""
    expected = process_worker.streamed(process_worker.stream_recipe(pictures, "data=1"))
    loss, hits, images = found["streamed/test"]
    assert (hits, images) == (expected["test"][1], 29)
    np.testing.assert_allclose(loss, expected["test"][0], rtol=1e-5)
    np.testing.assert_allclose(found["streamed/losses"], expected["losses"], rtol=1e-5)
