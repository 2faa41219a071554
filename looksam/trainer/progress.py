"""The progress of a run: what it is doing and where it is, as a bar on a terminal and in lines of text anywhere else.

The host is ahead of the devices by some steps. So a thread looks, a few times per second, which steps are done, and
shows that; no step waits for it.
"""

import collections
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

REDRAW_SECONDS = 0.25  # on a terminal
LINE_SECONDS = 10.0  # elsewhere
SPEED_SECONDS = 10.0  # over which the speed is taken
BAR_WIDTH = 20


class Progress:
    """Shows what a run is doing, its metrics (accuracies in percent), how fast it is and how long it will take.

    Call ``stage`` with what comes before the first step, ``begin`` with the steps of the run, then ``first_step``, and
    from there on ``step`` for each step and ``update`` for metrics.

    Args:
        images_per_step: shows images per second; steps per second without it.
        quiet: show nothing.
        stream: where to show it; stderr if not given.
        clock: seconds, for tests.
        threaded: redraw by a thread; without it, ``tick`` does.
    """

    def __init__(
        self,
        *,
        images_per_step: int | None = None,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        threaded: bool = True,
    ) -> None:
        self._images, self._quiet, self._clock = images_per_step, quiet, clock
        self._console = _Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False)
        self._terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar: Bar | None = None
        self._total: int | None = None
        self._step = 0  # the last one that is known to be done
        self._under_way = collections.deque[tuple[int, Any]]()
        self._numbers: dict[str, float] = {}
        self._stage: tuple[str, float] | None = None  # and since when
        self._evaluation_seconds = 0.0
        self._started = (0, 0.0)  # the step and the time from which the time left is estimated
        self._marks = collections.deque[tuple[int, float]]()  # steps and training time, for the speed
        self._line = (0, clock())  # the step and the time of the last line of text
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._redraw, daemon=True, name="progress")
        if threaded and not quiet:
            self._thread.start()

    def stage(self, text: str) -> None:
        """Shows what takes its time, until the next stage or step."""
        with self._lock:
            self._stage = (text, self._clock())
            if self._terminal:
                self._draw()
            else:
                self._print(text)

    def begin(self, total_steps: int, start_step: int = 0) -> None:
        """Sets the run's last step, and the one that it starts from."""
        with self._lock:
            self._total, self._step, self._line = total_steps, start_step, (start_step, self._clock())

    def first_step(self, step: int, seconds: float, compile_seconds: float) -> None:
        """Shows how long it took to start. The time left and the speed are estimated from here on."""
        with self._lock:
            self._stage, self._step, self._started = None, step, (step, self._clock())
            self._line = self._started
            self._marks.append((step, self._training_time()))
            self._print(f"first step after {seconds:.1f} s (compiled in {compile_seconds:.1f} s)")
            self._draw()

    def step(self, step: int, result: Any) -> None:
        """Notes that a step is under way; it is done when ``result``, an array that it computes, is there."""
        if not self._quiet:
            with self._lock:
                self._stage = None
                self._under_way.append((step, result))

    def update(self, step: int, **numbers: float) -> None:
        """Shows the metrics of a step, which is done."""
        with self._lock:
            self._numbers = numbers
            self._done(step)
            if step == self._total:
                self._show_line()

    @contextlib.contextmanager
    def evaluating(self, split: str) -> Iterator[None]:
        """Shows that the model is evaluated, and counts the time apart from that of training."""
        started = self._clock()
        with self._lock:
            self._done(self._under_way[-1][0] if self._under_way else self._step)
            self._stage = (f"evaluating on the {split} set", started)
            self._draw()
        try:
            yield
        finally:
            with self._lock:
                self._stage = None
                self._evaluation_seconds += self._clock() - started

    def evaluated(self, step: int, split: str, **numbers: float) -> None:
        """Shows an evaluation of the model on ``split``, as a line that stays, on a terminal too."""
        with self._lock:
            self._print(f"step {step}/{self._total}  {split} {_listed(numbers)}")

    def tick(self) -> None:
        """Redraws the bar, or prints a line if the last one is some time ago and a step was done since."""
        with self._lock:
            done = self._step
            while self._under_way and _is_ready(self._under_way[0][1]):
                done = self._under_way.popleft()[0]
            self._done(done)
            if self._terminal:
                self._draw()
            elif self._step > self._line[0] and self._clock() - self._line[1] >= LINE_SECONDS:
                self._show_line()

    def close(self) -> None:
        """Leaves the cursor on a fresh line."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if self._bar is not None:
                self._draw()
                self._bar.live.transient = not self._marks  # nothing to keep before the first step
                self._bar.stop()
                self._bar = None

    def _redraw(self) -> None:
        while not self._closed.wait(REDRAW_SECONDS):
            self.tick()

    def _done(self, step: int) -> None:
        """Notes that training has come to this step."""
        while self._under_way and self._under_way[0][0] <= step:
            self._under_way.popleft()
        if step <= self._step:
            return
        self._step = step
        now = self._training_time()
        self._marks.append((step, now))
        while len(self._marks) > 2 and self._marks[1][1] <= now - SPEED_SECONDS:
            self._marks.popleft()

    def _training_time(self) -> float:
        return self._clock() - self._evaluation_seconds

    def _show_line(self) -> None:
        self._line = (self._step, self._clock())
        if not self._terminal:
            self._print(self._text())

    def _draw(self) -> None:
        if not self._terminal or self._quiet:
            return
        self._bar = self._bar or self._open_bar()
        total = self._total if self._marks else None  # without one, the bar shows that there is life
        self._bar.update(self._bar.task_ids[0], total=total, completed=self._step, description=self._text())
        self._bar.refresh()

    def _open_bar(self) -> "Bar":
        from rich.progress import BarColumn, TextColumn  # imported here because it is slow and only a terminal needs it
        from rich.progress import Progress as Bar
        from rich.table import Column

        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        bar = Bar(BarColumn(BAR_WIDTH), text, console=self._console, auto_refresh=False, redirect_stdout=False)
        bar.add_task("", total=None)
        bar.start()
        return bar

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text, soft_wrap=True)

    def _text(self) -> str:
        parts = [f"step {self._step}/{self._total}", _listed(self._numbers)] if self._marks else []
        if self._stage is not None:
            text, since = self._stage
            parts.append(f"{text}  {_duration(self._clock() - since)}")
        elif self._marks:
            parts += [self._speed(), self._time_left()]
        return "  ".join(filter(None, parts))

    def _speed(self) -> str:
        (first, then), (last, now) = self._marks[0], self._marks[-1]
        if now <= then:
            return ""
        rate = (last - first) / (now - then)
        return f"{rate * self._images:,.0f} images/s" if self._images else f"{rate:.1f} steps/s"

    def _time_left(self) -> str:
        steps, seconds = self._step - self._started[0], self._clock() - self._started[1]
        if not steps or self._total is None or self._step >= self._total:
            return ""
        return f"{_duration((self._total - self._step) * seconds / steps)} left"


class _Console(Console):
    def show_cursor(self, show: bool = True) -> bool:
        return False  # Rich would hide it, and a killed run leave it hidden


def _is_ready(result: Any) -> bool:
    """Returns whether an array is computed, without waiting; NumPy's are."""
    return result.is_ready() if hasattr(result, "is_ready") else True


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _listed(numbers: dict[str, float]) -> str:
    return "  ".join(f"{name} {_short(name, value)}" for name, value in numbers.items())


def _short(name: str, value: float) -> str:
    return f"{value:.1f}%" if name.endswith(("accuracy", "fell_back")) else f"{value:.4g}"
