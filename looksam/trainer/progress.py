"""How far a run is: one line that moves on a terminal, now and then a line of text anywhere else."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

REDRAW_SECONDS = 0.1  # on a terminal
LINE_SECONDS = 10.0  # elsewhere
BAR_WIDTH = 20


class Progress:
    """Shows where a run is, what it measures (accuracies in percent), how fast it is and how long it will take.

    Args:
        total_steps: the run's last step.
        start_step: the step it goes on from.
        images_per_step: shows images a second; steps a second without it.
        quiet: show nothing.
        stream: where to; stderr if not given.
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
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._started = self._last = (start_step, clock())  # (step, time)
        self._first = True
        self._shown = clock()
        self._open_line = False
        self._rate = 0.0  # steps a second between the last two updates

    def update(self, step: int, **numbers: float) -> None:
        """Training is at this step. Draws only as often as one can read."""
        now = self._clock()
        if step > self._last[0] and now > self._last[1]:
            self._rate = (step - self._last[0]) / (now - self._last[1])
        if self._first:  # compilation lies before it, and says nothing about the time left
            self._started, self._first = (step, now), False
        self._last = (step, now)
        if step >= self._total or now - self._shown >= (REDRAW_SECONDS if self._terminal else LINE_SECONDS):
            self._shown = now
            self._draw(step, now, numbers)
            if step >= self._total:
                self.close()

    def evaluated(self, step: int, **numbers: float) -> None:
        """The model was evaluated: a line that stays, on a terminal too."""
        self._erase()
        self._print(f"step {step}/{self._total}  test {_listed(numbers)}\n")
        self._last = (self._last[0], self._clock())  # the evaluation is not a slow training step

    def close(self) -> None:
        """Leave the cursor on a fresh line."""
        if self._open_line:
            self._print("\n")
            self._open_line = False

    def _draw(self, step: int, now: float, numbers: dict[str, float]) -> None:
        text = "  ".join(filter(None, [_listed(numbers), self._speed(), self._time_left(step, now)]))
        where = f"step {step}/{self._total}"
        if not self._terminal:
            self._print(f"{where}  {text}\n")
            return
        filled = BAR_WIDTH * step // max(self._total, 1)
        line = f"[{'=' * filled}{' ' * (BAR_WIDTH - filled)}] {where}  {text}"
        self._erase()
        self._print(line[: shutil.get_terminal_size().columns - 1])
        self._open_line = True

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

    def _erase(self) -> None:
        if self._open_line:
            self._print("\r\x1b[K")
            self._open_line = False

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._stream.write(text)
            self._stream.flush()


def _listed(numbers: dict[str, float]) -> str:
    return "  ".join(f"{name} {_short(name, value)}" for name, value in numbers.items())


def _short(name: str, value: float) -> str:
    return f"{value:.1f}%" if name.endswith("accuracy") else f"{value:.4g}"
