"""What a command prints, and how errors become messages and exit codes.

Results go to stdout, as text or as one line of JSON; everything else goes to stderr.
"""

import contextlib
import json
import math
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from looksam.arguments import ArgumentError, did_you_mean
from looksam.bench.worker import WorkerError
from looksam.cli.flags import spelled
from looksam.trainer.own_code import OwnCodeError
from looksam.trainer.run_folder.run_directory import RunError, read_recipe

FAILED = 1
USAGE = 2
SIGNALLED = 128  # plus the number of the signal, as shells do: 130 for Ctrl-C, 143 for SIGTERM
INTERRUPTED = SIGNALLED + 2
BAD_INPUT = (ValueError, TypeError, OSError, ImportError)  # what our checks raise
EXTRA = (
    *("flax", "grain", "jax", "jaxlib", "jinja2", "matplotlib", "numpy", "optax", "orbax", "PIL", "pyarrow"),
    *("flatbuffers", "rich", "safetensors", "scipy", "sklearn"),
)


class UsageError(Exception):
    """The command line asks for something that does not exist or does not fit."""


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """Report a ValueError or TypeError raised inside as an error of the command line."""
    try:
        yield
    except OwnCodeError:  # which names settings as the user's file does
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error


@contextlib.contextmanager
def interrupted_with(message: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C inside end the command with this message, which says what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(message()) from None


def guarded(work: Callable[[], int], flags: Mapping[str, str]) -> int:
    """Run ``work`` and return its exit code; errors that we anticipate become one message on stderr and a code.

    Settings that a message names are shown as ``flags``. Any other exception propagates with its traceback.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # from argparse, which has printed its message
        return stop.code if isinstance(stop.code, int) else USAGE if stop.code else 0
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does; nothing more may be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OwnCodeError as error:
        return _fail(str(error), USAGE)
    except (UsageError, ArgumentError) as error:
        return _fail(spelled(str(error), flags), USAGE)
    except Exception as error:
        if not isinstance(error, (RunError, WorkerError, *BAD_INPUT)):
            raise
        return _fail(spelled(_message(error), flags), FAILED)


def report(line: str) -> None:
    """Print a line to stderr, so that stdout holds only the result."""
    print(line, file=sys.stderr, flush=True)


def silent(line: str) -> None:
    """Print nothing, in place of ``report``."""


def print_json(value: Any) -> None:
    print(json.dumps(value), flush=True)


def print_result(result: dict[str, Any], *, as_json: bool) -> None:
    """Print the status and the scores of a run."""
    if as_json:  # which has no NaN and no infinity
        lost = {name for name, value in result.items() if isinstance(value, float) and not math.isfinite(value)}
        print_json({name: None if name in lost else value for name, value in result.items()})
        return
    scores = [
        f"{split} {name} {result[f'{split}_{name}']:{form}}"
        for split in ("train", "validation", "test")
        for name, form in (("accuracy", ".2f"), ("loss", ".4f"))
        if result.get(f"{split}_{name}") is not None
    ]
    print(f"{result.get('status', 'evaluated')} at step {result['step']}: {', '.join(scores) or 'not tested yet'}")
    if result.get("best_test_accuracy") is not None:
        print(f"best validation accuracy {result['best_accuracy']:.2f} at step {result['best_step']}: ", end="")
        print(f"test accuracy {result['best_test_accuracy']:.2f}, test loss {result['best_test_loss']:.4f}")
    print(result["run_dir"], flush=True)


def aligned(rows: Sequence[Sequence[str]], *, right: bool = True) -> list[str]:
    """Lines of aligned columns, the first to the left and the others to the right, or all to the left."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0))]
    side = ">" if right else "<"
    cells = ([f"{cell:{side if i else '<'}{widths[i]}}" for i, cell in enumerate(row)] for row in rows)
    return ["  ".join(row).rstrip() for row in cells]


def existing_run(name: str) -> pathlib.Path:
    """The folder of a run, or an error that suggests the closest name."""
    directory = existing_folder(name)
    read_recipe(directory)  # raises where there is none, before JAX is loaded
    return directory


def existing_folder(name: str) -> pathlib.Path:
    """A folder, or an error that suggests the closest name."""
    directory = pathlib.Path(name)
    if directory.is_dir():
        return directory
    folders = directory.parent.iterdir() if directory.parent.is_dir() else ()
    names = [folder.name for folder in folders if folder.is_dir()]
    raise UsageError(f"{name!r} is not a folder{did_you_mean(directory.name, names, 'pass the folder of a run')}")


def _message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in EXTRA:
        return f"this needs {error.name}, which is not installed: pip install 'looksam[train]'"
    return str(error)


def _fail(message: str, code: int) -> int:
    if os.environ.get("LOOKSAM_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
    print(f"looksam: {message}", file=sys.stderr)
    return code
