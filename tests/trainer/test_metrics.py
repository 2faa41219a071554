"""What a run reports while it trains: metrics, progress, and how it is asked to stop."""

import io
import json
import math
import os
import re
import signal
import subprocess
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from looksam.trainer.loop import Interrupts
from looksam.trainer.metrics import MetricsLog, read_metrics
from looksam.trainer.progress import Progress
from looksam.trainer.run_directory import RunError


def log_steps(directory, steps):
    log = MetricsLog(directory)
    for step in steps:
        log.write(step, "train", {"loss": 1 / step, "epoch": step // 2})
    log.close()


def curve(directory, tag):
    """What TensorBoard's own reader makes of the event files."""
    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


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


def test_tensorboard_reads_the_event_files(tmp_path):
    log = MetricsLog(tmp_path)
    for step in (1, 2):
        log.write(step, "train", {"loss": step / 2, "images_per_second": 10.0})
    log.write(2, "test", {"loss": 7.0})
    log.close()
    assert curve(tmp_path, "train/loss") == [(1, 0.5), (2, 1.0)]
    assert curve(tmp_path, "train/images_per_second") == [(1, 10.0), (2, 10.0)]
    assert curve(tmp_path, "test/loss") == [(2, 7.0)]


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
    assert curve(cut, "train/loss") == curve(whole, "train/loss")
    assert sorted(path.name for path in cut.iterdir() if "tfevents" not in path.name) == ["metrics.jsonl"]


def test_events_after_the_cut_are_gone_before_new_ones_come(tmp_path):
    log_steps(tmp_path, range(1, 7))
    log = MetricsLog(tmp_path)
    log.cut_back(2)
    log.write(3, "test", {"loss": 0.0})
    log.close()
    assert [step for step, _ in curve(tmp_path, "train/loss")] == [1, 2]


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


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_plain_lines():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(1000, 100, images_per_step=64, stream=stream, clock=clock)
    progress.first_step(3.14, 1.86)
    for step in range(110, 400, 10):  # 4 s for the first update, 1 s for each of the others
        clock.now += 4 if step == 110 else 1
        progress.update(step, loss=2.0, accuracy=12.345)
    progress.evaluated(400, "test", loss=1.5, accuracy=50.0)
    clock.now += 100
    progress.update(1000, loss=1 / 3, accuracy=100.0)
    assert stream.getvalue().splitlines() == [
        "first step after 3.1 s (compiled in 1.9 s)",
        "step 170/1000  loss 2  accuracy 12.3%  640 images/s  1:23 left",
        "step 270/1000  loss 2  accuracy 12.3%  640 images/s  1:13 left",
        "step 370/1000  loss 2  accuracy 12.3%  640 images/s  1:03 left",
        "step 400/1000  test loss 1.5  accuracy 50.0%",
        f"step 1000/1000  loss 0.3333  accuracy 100.0%  {610 * 64 / 100:.0f} images/s",
    ]


def drawn(stream):
    """What Rich drew, one after another on the same line, without colours and the bar; and the lines that stay."""
    text = re.sub("[━╺╸]+ *", "", re.sub("\x1b\\[[0-9;]*m", "", stream.getvalue()))
    return text.split("\r\x1b[2K")


def test_progress_on_a_terminal_is_one_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    clock, stream = Clock(), Terminal()
    progress = Progress(40, stream=stream, clock=clock)
    for step in (10, 20):
        clock.now += 3600
        progress.update(step, loss=0.5)
    progress.update(21, loss=0.5)  # too soon to be drawn
    progress.evaluated(21, "validation", accuracy=7.0)
    progress.close()
    first, second = "step 10/40  loss 0.5  0.0 steps/s", "step 20/40  loss 0.5  0.0 steps/s  2:00:00 left"
    lines = [line.rstrip(" ") for line in drawn(stream)]
    assert [line for i, line in enumerate(lines) if line not in lines[:i]] == [
        first,
        second,
        f"step 21/40  validation accuracy 7.0%\n{second}",  # stays, and the bar below it
        f"{second}\n",
    ]
    assert stream.getvalue().count("━" * 10) >= 3  # half of the bar


def test_progress_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    progress = Progress(1, stream=stream, clock=Clock())
    progress.update(1, loss=0.123456789, a_long_name=1.0, another_long_name=2.0)
    assert max(len(line.rstrip("\n")) for line in drawn(stream)) <= 30
    assert stream.getvalue().count("\n") == 1


def test_progress_leaves_a_fresh_line_and_the_cursor(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    clock, stream = Clock(), Terminal()
    progress = Progress(2, stream=stream, clock=clock)
    clock.now += 1
    progress.update(1, loss=1.0)
    assert not stream.getvalue().endswith("\n")
    progress.close()
    progress.close()
    assert stream.getvalue().count("\n") == 1 and stream.getvalue().endswith("\n")
    assert "\x1b[?25l" not in stream.getvalue()  # hidden: a killed run would leave it so


def test_quiet_progress_shows_nothing():
    stream = Terminal()
    progress = Progress(2, quiet=True, stream=stream)
    progress.first_step(3.14, 1.86)
    progress.update(2, loss=1.0)
    progress.evaluated(2, "test", loss=1.0)
    progress.close()
    assert stream.getvalue() == ""


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
