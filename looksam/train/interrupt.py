"""Ctrl-C and SIGTERM as a flag, so that a run stops between two steps and not in the middle of one."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


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
