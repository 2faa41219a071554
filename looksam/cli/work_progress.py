"""The progress of long work that is not one training run: what is being done, the share that is done, the time left."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO

REDRAW_SECONDS = 0.25  # on a terminal, in place
LINE_SECONDS = 10.0  # elsewhere, one line after another
LOSES_EXCEPTIONS = "_xla_gc_callback"  # JAX's; Python prints what it raises, and goes on
CLEAR = "\r\x1b[2K"  # to the beginning of the line, and erase it


class WorkProgress:
    """Shows progress on stderr: one line that is redrawn on a terminal, and a line now and then anywhere else.

    As a context manager it also makes sure of Ctrl-C, which is lost if it comes while Python runs a callback of JAX's
    garbage collection: the next update then raises KeyboardInterrupt.

    Args:
      prefix: what all updates begin with.
      quiet: show nothing.
      stream: where to show it; stderr if not given.
      clock: seconds, for tests.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefix = prefix
        self._quiet, self._stream, self._clock = quiet, stream or sys.stderr, clock
        self._terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._began: float | None = None
        self._shown, self._title, self._open = -LINE_SECONDS, "", False
        self._interrupted = False
        self._handler: Any = None  # the one before ours

    def __enter__(self) -> "WorkProgress":
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None
        self.close()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        if frame is None or frame.f_code.co_name != LOSES_EXCEPTIONS:
            raise KeyboardInterrupt

    def update(self, title: str, done: float, total: float) -> None:
        """Shows the share of the work that is done, in any unit; an update of no work starts the clock."""
        if self._interrupted:
            raise KeyboardInterrupt
        now = self._clock()
        if self._began is None or done <= 0:
            self._began = now
        due = now - self._shown >= (REDRAW_SECONDS if self._terminal else LINE_SECONDS)
        if self._quiet or not (due or title != self._title):
            return
        self._shown, self._title = now, title
        share = done / total if total else 1.0
        parts = self._prefix + title, f"{share:.0%}", self._left(now - self._began, done, total)
        text = "  ".join(filter(None, parts))
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
            print(CLEAR + text[:width], end="", file=self._stream, flush=True)
            self._open = True
        else:
            print(text, file=self._stream, flush=True)

    def line(self, text: str) -> None:
        """Prints a line that stays."""
        if not self._quiet:
            self.close()
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Erases the line that is redrawn."""
        if self._open:
            print(CLEAR, end="", file=self._stream, flush=True)
            self._open = False

    def _left(self, seconds: float, done: float, total: float) -> str:
        if not 0 < done < total:
            return ""
        minutes, rest = divmod(round(seconds * (total - done) / done), 60)
        hours, minutes = divmod(minutes, 60)
        return f"about {hours}:{minutes:02}:{rest:02} left" if hours else f"about {minutes}:{rest:02} left"
