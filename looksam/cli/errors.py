"""What went wrong, as a message for people and an exit code for scripts."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator

FAILED = 1
USAGE = 2
SIGNALLED = 128  # plus the number of the signal, as shells count: 130 for Ctrl-C, 143 for SIGTERM
INTERRUPTED = SIGNALLED + 2
FORESEEN = (ValueError, TypeError, OSError, ImportError)  # what our checks raise on bad input
EXTRA = ("flax", "grain", "jax", "jaxlib", "matplotlib", "numpy", "optax", "orbax", "PIL", "pyarrow", "sklearn")


class UsageError(Exception):
    """The command line asks for something that does not exist or does not fit."""


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """Whatever is wrong in here is wrong on the command line."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error


def guarded(work: Callable[[], int]) -> int:
    """``work()``'s exit code, or that of what it raised, told on stderr. What no one foresaw goes through."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse, which has said what there is to say
        return stop.code if isinstance(stop.code, int) else USAGE if stop.code else 0
    except KeyboardInterrupt:
        return _tell("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe had enough, like `head`; nothing more may be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except UsageError as error:
        return _tell(str(error), USAGE)
    except Exception as error:
        if not _foreseen(error):
            raise
        return _tell(_message(error), FAILED)


def _foreseen(error: Exception) -> bool:
    from looksam.trainer.run_directory import RunError

    return isinstance(error, (RunError, *FORESEEN))


def _message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in EXTRA:
        return f"this needs {error.name}, which is not installed: pip install 'looksam[train]'"
    return str(error)


def _tell(message: str, code: int) -> int:
    if os.environ.get("LOOKSAM_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
    print(f"looksam: {message}", file=sys.stderr)
    return code
