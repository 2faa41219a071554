"""A subject in a process of its own, which takes its turns on request.

A process of its own is what a training run has: its own memory, which a large gradient may find freed or must ask the
operating system for, its own threads, and its own environment, so that two settings of a compiler, or JAX and PyTorch,
can be compared in one run. ``serve.py`` is the other end.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from looksam.bench.harness import Turn

SHOWN_LINES = 12  # of the stderr of a worker that ended


class WorkerError(RuntimeError):
    """A worker process exited unexpectedly."""


class Worker:
    """A process that builds a subject and times its steps.

    The process starts at once, and the first request waits for it. It ends when the worker is closed or when this
    process is gone.

    Args:
      name: for messages.
      target: ``"module:function"``, which returns the subject.
      arguments: of that function; plain JSON.
      environment: variables that are set in the process, in addition to those of this one.
    """

    def __init__(
        self, name: str, target: str, arguments: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115, closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "looksam.bench.serve", target, json.dumps(dict(arguments))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C is for this process, which then closes its workers
        )
        self._ready = False

    def wait_until_ready(self) -> None:
        """Waits until the subject is built: compiled, if it compiles."""
        if not self._ready:
            self._answer()
            self._ready = True

    def turn(self, steps: int) -> Turn:
        """Takes so many steps, and returns the time per step."""
        return Turn(*self._ask(steps))

    def facts(self) -> dict[str, float]:
        """The facts of the subject so far."""
        facts: dict[str, float] = self._ask("facts")
        return facts

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # of a request that it did not read
                pipe.close()
        self._stderr.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: Any) -> Any:
        self.wait_until_ready()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> WorkerError:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()[-SHOWN_LINES:]
        last = "".join(f"\n  {line}" for line in lines) or " nothing"
        return WorkerError(f"the process of {self.name} ended with code {code}; the last lines of its stderr:{last}")
