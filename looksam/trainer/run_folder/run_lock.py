"""One training process per run folder: a lock that the system releases when the process ends, however it ends.

The lock is ``flock`` on ``train.lock``, where the process leaves its number for the message of the next one. Of a run's
processes, the first takes it. Commands that only read a run, such as ``looksam eval``, take none.
"""

import contextlib
import errno
import json
import os
import pathlib
import socket
from collections.abc import Callable, Iterator

from looksam.trainer.run_folder.run_directory import RunError, holds_run, writing_to

NAME = "train.lock"
HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def working_in(directory: pathlib.Path, report: Callable[[str], None]) -> Iterator[None]:
    """Creates a run's folder and holds its lock. Raises RunError at once where another process trains there.

    A folder that was created here and in which no step was taken is removed again.

    Args:
        directory: the run's folder.
        report: takes one line if the file system has no locks: the run then trains without one.
    """
    created = not directory.exists()
    with writing_to(directory):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(directory / NAME, report)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # while it is held: whoever waits for it checks that it is still there
            (directory / NAME).unlink()
        os.close(descriptor)
        if created and not holds_run(directory):
            for folder in (directory / "checkpoints", directory):
                with contextlib.suppress(OSError):  # not empty, or not there
                    folder.rmdir()


def _lock(path: pathlib.Path, report: Callable[[str], None]) -> int:
    """Returns the descriptor of the file, locked until it is closed."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(descriptor, path, report)
            if _is_at(descriptor, path):
                os.truncate(descriptor, 0)
                os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed by the process that held it until now


def _take(descriptor: int, path: pathlib.Path, report: Callable[[str], None]) -> None:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        report(f"this system has no file locks: see to it that no other process trains in {path.parent}")
    except OSError as error:
        if error.errno in HELD:
            raise RunError(
                f"{path.parent} is in use: {_holder(descriptor)} trains there. Wait for it or end it, or pass another "
                "--run-dir; `looksam eval` may read the run meanwhile."
            ) from None
        report(f"{path} cannot be locked ({error.strerror}): see to it that no other process trains in {path.parent}")


def _holder(descriptor: int) -> str:
    """Returns who holds the lock, as far as the file tells."""
    try:
        holder = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {int(holder['pid'])} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _is_at(descriptor: int, path: pathlib.Path) -> bool:
    """Returns whether the path still leads to this file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
