"""When a run stops before its last step, and what it warns of: signals, a time limit, no improvement, divergence.

A run asks between two steps, and none of this changes a step.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any

import jax

TIME_IS_UP = 1000  # in place of a signal's number, where ``max_minutes`` have passed
DIVERGED = 100  # times the loss of uniform predictions
FIRST_REFRESHES = 3  # of a start, after which a rule that has never acted is reported


def stop_request(interrupts: "Interrupts", started: float, max_minutes: float | None) -> int | None:
    """Returns the number of the signal that came, ``TIME_IS_UP``, or None to continue."""
    if interrupts.signal is None and max_minutes is not None and time.perf_counter() - started >= 60 * max_minutes:
        return TIME_IS_UP
    return interrupts.signal


def divergence(losses: Mapping[str, float], num_classes: int) -> str | None:
    """Returns a sentence about the split on which a model has diverged, or None.

    It has where the mean cross-entropy is not finite, or more than 100 times that of uniform predictions,
    log(num_classes): a model that only overfits, or is trained on random labels, stays far below.

    >>> divergence({"validation": 2.3, "test": 200.0}, num_classes=10)
    >>> divergence({"test": 6.5e14}, num_classes=10)
    'the run has diverged: its test loss is 6.5e+14, and that of uniform predictions is 2.30'
    """
    uniform = math.log(max(num_classes, 2))
    for split, loss in losses.items():
        if not loss <= DIVERGED * uniform:  # so that NaN has diverged too
            chance = f"that of uniform predictions is {uniform:.2f}"
            return f"the run has diverged: its {split} loss is {loss:.4g}, and {chance}"
    return None


class Fallbacks:
    """Counts the refreshes on which a rule fell back to the plain gradient, because a norm was not finite.

    What a step reports stays on the device until ``share`` reads it, so that no step waits.

    Args:
        warn: takes one line if the first refreshes, all of them, fell back.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn, self._unread = warn, list[tuple[int, Any]]()
        self._first: list[Any] | None = []  # the first refreshes; None once they are read

    def add(self, step: int, metrics: Mapping[str, Any], refreshed: bool | None) -> None:
        """Takes the metrics of a step that is under way. Reads, once, the first few of those before it."""
        if self._first is not None and len(self._first) == FIRST_REFRESHES:
            first, self._first = self._first, None
            if all(self._read(first)):
                self._warn(
                    f"warning: in its first {FIRST_REFRESHES} refreshes the rule fell back to the plain gradient, "
                    "because a norm was not finite. So far, this is the base optimizer; lower --rho."
                )
        if refreshed and "fell_back" in metrics:
            self._unread.append((step, metrics["fell_back"]))
            if self._first is not None:
                self._first.append(metrics["fell_back"])

    def share(self, step: int) -> float:
        """Returns the share, in percent, of the refreshes since the last call, up to a step, that fell back."""
        values = [value for at, value in self._unread if at <= step]
        self._unread = [(at, value) for at, value in self._unread if at > step]
        return 100 * sum(self._read(values)) / max(1, len(values))

    @staticmethod
    def _read(values: list[Any]) -> list[float]:
        return [float(value) for value in jax.device_get(values)]


class Interrupts:
    """While it is open, the first SIGINT or SIGTERM only sets ``signal``; a further Ctrl-C interrupts at once.

    Signals that the process ignores stay ignored. Outside the main thread, where Python has no signals, it does
    nothing.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the first one that came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):  # None: set from C, and could not be set back
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
