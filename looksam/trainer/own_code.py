"""Models, datasets and recipes that users bring along, by name: nothing in the package needs to be edited for them.

A name is ``file.py:function`` or ``package.module:function``, or that of an entry point of an installed package, in one
of the groups ``looksam.models``, ``looksam.datasets`` and ``looksam.recipes``. Recipes are saved as text, so a function
that a recipe is given is kept as such a name (``as_name``), and ``load`` imports it where it is needed.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import pathlib
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from looksam.arguments import ArgumentError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PACKAGE = str(pathlib.Path(__file__).parents[1])
IMPORTING = threading.RLock()  # a thread that finds a file in sys.modules must not get it half imported


class OwnCodeError(ArgumentError):
    """A file or a function of the user's own cannot be used; the message says where, why, and how to fix it."""


# --- names --------------------------------------------------------------------------------------------------------


def as_name(what: str, value: Any, built_in: Collection[str]) -> str:
    """Returns the name under which a recipe keeps its model or dataset.

    Args:
      what: "model" or "dataset".
      value: a name, or a function.
      built_in: the names that come with the package.
    """
    if callable(value):
        return name_of(what, value)
    if not isinstance(value, str):
        raise TypeError(f"{what}={value!r} has the wrong type; pass a name, file.py:function, or in Python a function.")
    if value in built_in:
        return value
    if is_reference(value):
        return absolute(value)
    if value in entry_points(f"{what}s"):
        return value
    if value.endswith(".py"):
        raise ValueError(f"{what} {value!r} names a file alone; name its function too, as in {value}:build.")
    names = [*built_in, *entry_points(f"{what}s")]
    raise ValueError(f"{what} {value!r} is unknown{did_you_mean(value, names)}")


def is_reference(name: str) -> bool:
    """Returns whether a name has the form ``file.py:function`` or ``package.module:function``."""
    place, _, function = name.rpartition(":")
    return bool(place) and all(part.isidentifier() for part in function.split("."))


def absolute(reference: str, folder: str | os.PathLike[str] = "") -> str:
    """Returns a reference with the whole path of its file, which is relative to ``folder`` or the current one."""
    place, _, function = reference.rpartition(":")
    if not place.endswith(".py"):
        return reference
    return f"{os.path.abspath(os.path.join(folder, os.path.expanduser(place)))}:{function}"


def name_of(what: str, function: Callable[..., Any]) -> str:
    """Returns the reference under which ``load`` finds this function again, in another process too."""
    name, module = getattr(function, "__qualname__", ""), sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(
            f"{what}={name or repr(function)} cannot be found again by name, which resuming and evaluating a run need; "
            "define it with def at the top level of a file, and give it options instead of wrapping it."
        )
    if module.__name__ != "__main__" and module.__package__:
        return f"{module.__name__}:{name}"
    file = getattr(module, "__file__", None)
    if file is None:
        raise ValueError(f"{what}={name} is defined in a notebook or a prompt; put it into a file and import it.")
    return f"{os.path.abspath(file)}:{name}"


@functools.cache
def entry_points(group: str) -> dict[str, "EntryPoint"]:
    """Returns the entry points of ``looksam.<group>`` by name; of two packages, the one first on the path wins."""
    from importlib import metadata  # here, because the help does not need it

    return {point.name: point for point in reversed([*metadata.entry_points(group=f"looksam.{group}")])}


# --- importing ----------------------------------------------------------------------------------------------------


def load(what: str, name: str) -> Callable[..., Any]:
    """Returns the function that a name stands for; see ``as_name``."""
    found = _referenced(what, name) if is_reference(name) else load_entry_point(f"{what}s", name)
    if not callable(found):
        raise OwnCodeError(
            f"{what} {name} is a {type(found).__name__}, not a function; name a function that makes one."
        )
    return found


def load_entry_point(group: str, name: str) -> Any:
    """Returns the object of an entry point."""
    point = entry_points(group)[name]
    with reported(f"{point.value}, the entry point {name!r} of {distribution(point)}"):
        return point.load()


def distribution(point: "EntryPoint") -> str:
    """Returns the name and version of the package that an entry point belongs to."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an installed package"


def _referenced(what: str, name: str) -> Any:
    place, _, attribute = name.rpartition(":")
    check_exists(what, name)
    found: Any = load_file(pathlib.Path(place)) if place.endswith(".py") else _module(what, name, place)
    for part in attribute.split("."):
        if not hasattr(found, part):
            functions = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
            hint = did_you_mean(part, functions, "define it there, at the top level")
            raise OwnCodeError(f"{what} {name}: {place} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def _module(what: str, name: str, place: str) -> ModuleType:
    try:
        with reported(f"{what} {name}"):
            return importlib.import_module(place)
    except OwnCodeError as error:
        missing = getattr(error.__cause__, "name", None)
        if not missing or not f"{place}.".startswith(f"{missing}."):  # something else that it imports
            raise
        fix = "install its package, or pass file.py:function"
        raise OwnCodeError(f"{what} {name}: there is no module {missing!r}; {fix}.") from error


def check_exists(what: str, name: str) -> None:
    """Raises if the file of a ``file.py:function`` is not there; imports nothing."""
    place, _, _ = name.rpartition(":")
    if place.endswith(".py") and not os.path.isfile(place):
        raise OwnCodeError(
            f"{what} {name}: there is no file {place}; correct the path (in a run's folder, that of {what!r} in "
            "recipe.json)."
        )


def load_file(path: pathlib.Path) -> ModuleType:
    """Returns the module of a file, imported once; modules next to it can be imported from it.

    The folder is added to the end of ``sys.path``, which worker processes inherit, so that they can import it too.
    """
    file = os.path.abspath(path)
    with IMPORTING:
        for module in [*sys.modules.values()]:  # also the script that is running
            if os.path.abspath(getattr(module, "__file__", None) or "") == file:
                return module
        folder, stem = os.path.dirname(file), pathlib.Path(file).stem
        if folder not in sys.path:
            sys.path.append(folder)
        spec = importlib.util.spec_from_file_location(_free_name(stem, file), file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            with reported(file):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[spec.name]
            raise
        return module


def _free_name(stem: str, file: str) -> str:
    """Returns the name under which a file would be imported, or a longer one where that is another module's."""
    spec = None if stem in sys.modules or not stem.isidentifier() else importlib.util.find_spec(stem)
    if spec is not None and spec.origin == file:
        return stem
    return f"{stem}_{hashlib.sha256(file.encode()).hexdigest()[:8]}"


# --- errors -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reported(what: str) -> Iterator[None]:
    """Turns any exception raised inside into an ``OwnCodeError`` that names the line of the user's file."""
    try:
        yield
    except OwnCodeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and _is_ours(error):  # such as data that is not there
            raise
        place = _place(error)
        where = [place] if what in place else [what, *([place] if place else [])]
        raise OwnCodeError(f"{': '.join(where)}: {_reason(error)}") from error


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [*traceback.extract_tb(error.__traceback__)]


def _place(error: BaseException) -> str:
    """Returns "file, line n" of the user's code that raised, or that called what raised; empty if unknown."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    from sysconfig import get_paths  # only errors need it

    paths = get_paths()
    foreign = (PACKAGE, "<", *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")))
    own = [frame for frame in _frames(error) if not frame.filename.startswith(foreign)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def _reason(error: BaseException) -> str:
    """Returns the message, with the type of error unless it is one of our checks, which speaks for itself."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return text if isinstance(error, ValueError | TypeError) and _is_ours(error) else f"{type(error).__name__}: {text}"


def _is_ours(error: BaseException) -> bool:
    return any(frame.filename.startswith(PACKAGE) for frame in _frames(error)[-1:])
