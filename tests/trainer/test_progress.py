"""What a run shows while it trains: a bar on a terminal, and some lines in a file."""

import io
import re
import threading
import time

import pytest

from looksam.trainer.progress import Progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Computing:
    """A number that a device may still be computing."""

    def __init__(self):
        self.done = False

    def is_ready(self):
        return self.done


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "tmux-256color")
    monkeypatch.setenv("COLUMNS", "90")
    return Terminal()


def drawn(stream):
    """What Rich drew, one after another on the same line, without colours and the bar; and the lines that stay."""
    text = re.sub("[━╺╸]+ *", "", re.sub("\x1b\\[[0-9;]*m", "", stream.getvalue()))
    return text.split("\r\x1b[2K")


def started(stream, clock, total=1000, start=100, **options):
    """The progress of a run whose first step is done."""
    progress = Progress(stream=stream, clock=clock, threaded=False, **options)
    progress.begin(total, start)
    progress.first_step(start + 1, 3.14, 1.86)
    return progress


def test_lines_in_a_file(clock):
    stream = io.StringIO()
    progress = Progress(images_per_step=64, stream=stream, clock=clock, threaded=False)
    for stage in ("loading digits", "compiling the training step"):
        progress.stage(stage)
        clock.now += 30
        progress.tick()
    progress.begin(1000, 100)
    progress.first_step(101, 60.04, 30.1)
    for step in range(111, 400, 10):
        clock.now += 1
        progress.step(step, None)
        progress.tick()
        if step == 201:
            progress.update(step, loss=2.0, accuracy=12.345, fell_back=50.0)
    with progress.evaluating("test"):
        clock.now += 50
        progress.tick()
    progress.evaluated(391, "test", loss=1.5, accuracy=50.0)
    clock.now += 100
    progress.update(1000, loss=1 / 3, accuracy=100.0)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "loading digits",
        "compiling the training step",
        "first step after 60.0 s (compiled in 30.1 s)",
        "step 201/1000  640 images/s  1:20 left",
        "step 301/1000  loss 2  accuracy 12.3%  fell_back 50.0%  640 images/s  1:10 left",
        "step 391/1000  loss 2  accuracy 12.3%  fell_back 50.0%  evaluating on the test set  0:50",
        "step 391/1000  test loss 1.5  accuracy 50.0%",
        f"step 1000/1000  loss 0.3333  accuracy 100.0%  {609 * 64 / 100:.0f} images/s",
    ]


def test_a_slow_run_prints_no_line_twice(clock):
    stream = io.StringIO()
    progress = started(stream, clock)
    for step in (102, 103):
        progress.step(step, None)
        for _ in range(100):  # of a minute each
            clock.now += 60
            progress.tick()
    assert [line.partition("  ")[0] for line in stream.getvalue().splitlines()[1:]] == [
        "step 102/1000",
        "step 103/1000",
    ]


def test_an_evaluation_between_two_logs_does_not_change_the_speed(clock):
    stream = io.StringIO()
    progress = started(stream, clock, total=100, start=0, images_per_step=100)
    clock.now += 40
    progress.step(41, None)
    with progress.evaluating("test"):
        clock.now += 1000
    clock.now += 9
    progress.update(50, loss=1.0)
    clock.now += 50
    progress.update(100, loss=1.0)
    progress.tick()
    assert stream.getvalue().splitlines()[-1] == "step 100/100  loss 1  100 images/s"


def test_the_bar_moves_by_time_as_steps_are_done(terminal, clock):
    progress = started(terminal, clock, total=40, start=0)
    steps = [Computing() for _ in range(10)]
    for i, step in enumerate(steps, start=2):
        progress.step(i, step)  # the host is ahead
    for done in (1, 4):
        clock.now += 1
        for step in steps[:done]:
            step.done = True
        progress.tick()
    shown = [line for line in drawn(terminal) if line.startswith("step ")]
    assert [line.split()[1] for line in dict.fromkeys(shown)] == ["1/40", "2/40", "5/40"]
    assert shown[-1] == "step 5/40  2.0 steps/s  0:18 left"


def test_a_terminal_shows_stages_with_their_time(terminal, clock):
    progress = Progress(stream=terminal, clock=clock, threaded=False)
    progress.stage("loading digits")
    clock.now += 75
    progress.tick()
    assert [line for line in drawn(terminal) if "loading" in line][-1] == "loading digits  1:15"
    progress.begin(40)
    progress.first_step(1, 80.0, 2.0)
    with progress.evaluating("validation"):
        clock.now += 5
        progress.tick()
    assert [line for line in drawn(terminal) if "evaluating" in line][-1] == (
        "step 1/40  evaluating on the validation set  0:05"
    )


def test_a_terminal_has_one_line_that_changes(terminal, clock):
    progress = started(terminal, clock, total=40, start=0)
    for step in (10, 20):
        clock.now += 3600
        progress.update(step, loss=0.5)
        progress.tick()
    progress.evaluated(20, "validation", accuracy=7.0)
    progress.close()
    lines = list(dict.fromkeys(drawn(terminal)))
    bar = "step 20/40  loss 0.5  0.0 steps/s  2:06:19 left"
    assert f"step 20/40  validation accuracy 7.0%\n{bar}" in lines  # stays, and the bar below it
    assert lines[-1] == f"{bar}\n"
    assert terminal.getvalue().count("\n") == 3  # with the line about the first step
    assert "\x1b[?25l" not in terminal.getvalue()  # hidden: a killed run would leave it so


def test_a_narrow_terminal_is_not_overrun(terminal, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    progress = started(terminal, clock, total=2, start=0)
    progress.update(2, loss=0.123456789, a_long_name=1.0, another_long_name=2.0)
    progress.close()
    assert max(len(line.strip("\n")) for line in drawn(terminal) if "compiled" not in line) <= 30


def test_a_run_that_is_refused_leaves_no_bar(terminal, clock):
    progress = Progress(stream=terminal, clock=clock, threaded=False)
    progress.stage("loading digits")
    progress.close()
    progress.close()
    assert terminal.getvalue().endswith("\r\x1b[1A\x1b[2K")


def test_quiet_shows_nothing(terminal):
    progress = Progress(quiet=True, stream=terminal)
    progress.stage("loading digits")
    progress.begin(2)
    progress.first_step(1, 3.14, 1.86)
    progress.step(2, None)
    with progress.evaluating("test"):
        pass
    progress.update(2, loss=1.0)
    progress.evaluated(2, "test", loss=1.0)
    progress.close()
    assert terminal.getvalue() == ""


def test_a_thread_redraws_until_the_end(terminal):
    before = threading.active_count()
    progress = Progress(stream=terminal)
    progress.stage("loading digits")
    deadline = time.monotonic() + 10
    while terminal.getvalue().count("loading digits") < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    progress.close()
    assert terminal.getvalue().count("loading digits") >= 3 and threading.active_count() == before
