"""The line about long work: share and time left, redrawn on a terminal, now and then elsewhere."""

import io
import signal

import pytest

from looksam.cli.work_progress import CLEAR, WorkProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


UPDATES = [(0.0, "base", 0), (5.0, "base", 10), (9.0, "base", 15), (20.0, "sam", 40), (50.0, "sam", 100)]


def run(stream, **options):
    times = iter([time for time, _, _ in UPDATES])
    progress = WorkProgress(stream=stream, clock=lambda: next(times), **options)
    for _, title, done in UPDATES:
        progress.update(title, done, 100)
    progress.line("sam: 90 %")
    progress.close()
    return stream.getvalue()


def test_lines_come_every_ten_seconds_and_with_every_title():
    assert run(io.StringIO(), prefix="digits: ").splitlines() == [
        "digits: base  0%",
        "digits: sam  40%  about 0:30 left",
        "digits: sam  100%",
        "sam: 90 %",
    ]


def test_a_terminal_has_one_line_that_is_redrawn(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = run(Terminal()).split(CLEAR)
    assert shown[2] == "base  10%  about 0:45 left"
    assert shown[-1] == "sam: 90 %\n" and all("\n" not in text for text in shown[:-1])


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet(stream):
    assert run(stream, quiet=True) == ""


def test_hours():
    stream, times = io.StringIO(), iter([0.0, 3600.0])
    progress = WorkProgress(stream=stream, clock=lambda: next(times))
    for done in (0, 1):
        progress.update("base", done, 3)
    assert stream.getvalue().endswith("about 2:00:00 left\n")


@pytest.fixture
def interruptible():
    """SIGINT as Python handles it by default: a background job may have been started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_a_callback_would_lose_is_raised_by_the_next_update():
    def _xla_gc_callback():
        signal.raise_signal(signal.SIGINT)

    with WorkProgress(quiet=True) as progress:
        progress.update("base", 0, 2)
        _xla_gc_callback()
        with pytest.raises(KeyboardInterrupt):
            progress.update("base", 1, 2)
    with WorkProgress(quiet=True), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
