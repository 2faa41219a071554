"""The metrics of a run: what a line holds, what a resumed run cuts off, and what goes wrong."""

import json
import math
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from looksam.trainer.run_folder.metrics import MetricsLog, read_metrics
from looksam.trainer.run_folder.run_directory import RunError


def log_steps(directory, steps):
    log = MetricsLog(directory)
    for step in steps:
        log.write(step, "train", {"loss": 1 / step, "epoch": step // 2})
    log.close()


def test_lines_hold_the_numbers_exactly(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(3, "train", {"loss": 0.1 + 0.2, "n": np.int64(7), "half": jnp.asarray(0.1, jnp.float32)})
    text = (tmp_path / "metrics.jsonl").read_text()  # before close: each line is flushed
    assert text == '{"step": 3, "split": "train", "loss": 0.30000000000000004, "n": 7, "half": 0.10000000149011612}\n'
    log.write(4, "test", {"accuracy": 91.5})
    log.close()
    assert read_metrics(tmp_path)[1] == {"step": 4, "split": "test", "accuracy": 91.5}
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["loss"] == 0.1 + 0.2


def test_numbers_that_are_not_finite_are_null(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(1, "train", {"loss": math.nan, "norm": math.inf, "accuracy": 1.0})
    log.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert line == {"step": 1, "split": "train", "loss": None, "norm": None, "accuracy": 1.0}
    (record,) = read_metrics(tmp_path)
    assert math.isnan(record["loss"]) and math.isnan(record["norm"]) and record["accuracy"] == 1.0


def test_a_run_cut_back_and_resumed_gives_the_same_bytes(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    log_steps(whole, range(1, 9))
    log_steps(cut, range(1, 7))
    with (cut / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 7, "spl')  # torn by a kill
    log = MetricsLog(cut)
    log.cut_back(4)
    assert [record["step"] for record in read_metrics(cut)] == [1, 2, 3, 4]
    for step in range(5, 9):
        log.write(step, "train", {"loss": 1 / step, "epoch": step // 2})
    log.close()
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert sorted(path.name for path in cut.iterdir()) == ["metrics.jsonl"]


def test_a_cut_where_nothing_is_to_be_cut(tmp_path):
    log = MetricsLog(tmp_path)
    log.cut_back(0)
    assert list(tmp_path.iterdir()) == []
    log.write(1, "train", {"loss": 1.0})
    log.cut_back(1)
    log.close()
    assert [record["step"] for record in read_metrics(tmp_path)] == [1]
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"st')
    assert len(read_metrics(tmp_path)) == 1


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(RunError, match=r"line 2 of .*metrics\.jsonl is not a line of metrics"):
        MetricsLog(tmp_path).cut_back(3)
    assert path.read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"step": 1}, ValueError, "'step'"),
        ({"split": 1}, ValueError, "'split'"),
        ({"loss": "1"}, TypeError, "loss='1'"),
    ],
)
def test_what_is_not_a_metric_is_named(tmp_path, values, error, words):
    with pytest.raises(error, match=words):
        MetricsLog(tmp_path).write(1, "train", values)
    assert list(tmp_path.iterdir()) == []


def write_many(log):
    for step in range(2, 10_000):
        log.write(step, "train", {"loss": 1.0})


def test_a_full_disk_stops_the_run(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        log = MetricsLog(disk)
        log.write(1, "train", {"loss": 1.0})
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(bytes(2**17))
        with pytest.raises(RunError, match=r"metrics\.jsonl \(No space left on device\).*safe; make room"):
            write_many(log)
        log.close()
        (disk / "filler").unlink()
        log.cut_back(1)
        assert [record["step"] for record in read_metrics(disk)] == [1]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_process_that_does_not_write_leaves_no_file(tmp_path):
    log = MetricsLog(tmp_path, enabled=False)
    log.cut_back(0)
    log.write(1, "train", {"loss": 1.0})
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_stops_the_run(tmp_path):
    with pytest.raises(RunError, match=r"No such file or directory"):
        MetricsLog(tmp_path / "gone").write(1, "train", {"loss": 1.0})
