"""The progress of a run: a bar by Rich on a terminal, and a line of text every ten seconds anywhere else."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

REDRAW_SECONDS = 0.1  # on a terminal
LINE_SECONDS = 10.0  # elsewhere
BAR_WIDTH = 20


class Progress:
    """Shows where a run is, its metrics (accuracies in percent), how fast it is and how long it will take.

    Args:
        total_steps: the run's last step.
        start_step: the step it resumes from.
        images_per_step: shows images per second; steps per second without it.
        quiet: show nothing.
        stream: where to show it; stderr if not given.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int = 0,
        *,
        images_per_step: int | None = None,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._images, self._quiet, self._clock = total_steps, images_per_step, quiet, clock
        self._console = _Console(file=stream or sys.stderr, highlight=False, markup=False, emoji=False)
        self._terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar: Bar | None = None
        self._started = self._last = (start_step, clock())  # (step, time)
        self._first = True
        self._shown = clock()
        self._rate = 0.0  # steps per second between the last two updates

    def first_step(self, seconds: float, compile_seconds: float) -> None:
        """Shows how long it took to start."""
        self._print(f"first step after {seconds:.1f} s (compiled in {compile_seconds:.1f} s)")

    def update(self, step: int, **numbers: float) -> None:
        """Shows that training is at this step, only as often as one can read."""
        now = self._clock()
        if step > self._last[0] and now > self._last[1]:
            self._rate = (step - self._last[0]) / (now - self._last[1])
        if self._first:  # compilation came before it, and says nothing about the time left
            self._started, self._first = (step, now), False
        self._last = (step, now)
        if step >= self._total or now - self._shown >= (REDRAW_SECONDS if self._terminal else LINE_SECONDS):
            self._shown = now
            self._show(step, self._text(step, now, numbers))
            if step >= self._total:
                self.close()

    def evaluated(self, step: int, split: str, **numbers: float) -> None:
        """Shows an evaluation of the model on ``split``, as a line that stays, on a terminal too."""
        self._print(f"step {step}/{self._total}  {split} {_listed(numbers)}")
        self._last = (self._last[0], self._clock())  # the evaluation is not a slow training step

    def close(self) -> None:
        """Leaves the cursor on a fresh line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, step: int, text: str) -> None:
        if not self._terminal:
            self._print(text)
        elif not self._quiet:
            self._bar = self._bar or self._open_bar(text)
            self._bar.update(self._bar.task_ids[0], completed=step, description=text)
            self._bar.refresh()

    def _open_bar(self, description: str) -> "Bar":
        from rich.progress import BarColumn, TextColumn  # imported here because it is slow and only a terminal needs it
        from rich.progress import Progress as Bar
        from rich.table import Column

        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        bar = Bar(BarColumn(BAR_WIDTH), text, console=self._console, auto_refresh=False, redirect_stdout=False)
        bar.add_task(description, total=self._total)
        bar.start()
        return bar

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text, soft_wrap=True)

    def _text(self, step: int, now: float, numbers: dict[str, float]) -> str:
        parts = f"step {step}/{self._total}", _listed(numbers), self._speed(), self._time_left(step, now)
        return "  ".join(filter(None, parts))

    def _speed(self) -> str:
        if not self._rate:
            return ""
        return f"{self._rate * self._images:,.0f} images/s" if self._images else f"{self._rate:.1f} steps/s"

    def _time_left(self, step: int, now: float) -> str:
        steps, seconds = step - self._started[0], now - self._started[1]
        if not steps or step >= self._total:
            return ""
        minutes, rest = divmod(round((self._total - step) * seconds / steps), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"


class _Console(Console):
    def show_cursor(self, show: bool = True) -> bool:
        return False  # Rich would hide it, and a killed run leave it hidden


def _listed(numbers: dict[str, float]) -> str:
    return "  ".join(f"{name} {_short(name, value)}" for name, value in numbers.items())


def _short(name: str, value: float) -> str:
    return f"{value:.1f}%" if name.endswith("accuracy") else f"{value:.4g}"
