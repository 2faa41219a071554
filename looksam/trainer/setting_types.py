"""The types of a recipe's settings: text to value, a type in words, and the checks that all settings share."""

import contextlib
import functools
import math
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal, Union, get_args, get_origin

from looksam.arguments import did_you_mean


def parse(text: str, wanted: Any) -> Any:
    """Returns the value of type ``wanted`` that a flag's text stands for, or raises ValueError with the reason."""
    if _is_union(wanted):
        return _parse_union(text, wanted)
    if get_origin(wanted) is Literal:
        if text not in get_args(wanted):
            raise ValueError(f"{text!r} is unknown{did_you_mean(text, get_args(wanted))}")
        return text
    if wanted is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{text!r} is not {describe(bool)}")
        return text.lower() == "true"
    try:
        return wanted(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {describe(wanted)}") from None


def _parse_union(text: str, wanted: Any) -> Any:
    options = get_args(wanted)
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        if option is not type(None):
            with contextlib.suppress(ValueError):
                return parse(text, option)
    raise ValueError(f"{text!r} is not {describe(wanted)}")


def describe(wanted: Any) -> str:
    """What users call a type, e.g. "a whole number or none"."""
    if _is_union(wanted):
        return " or ".join(describe(option) for option in get_args(wanted))
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(str, get_args(wanted)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "none"}[
        wanted
    ]


def fits(value: Any, wanted: Any) -> bool:
    """Whether a value has the type ``wanted``. An int is a float too, but a bool is neither."""
    return _test_of(wanted)(value)


@functools.cache  # a search over settings creates recipes by the thousand
def _test_of(wanted: Any) -> Callable[[Any], bool]:
    options = get_args(wanted)
    if _is_union(wanted):
        tests = [_test_of(option) for option in options]
        return lambda value: any(test(value) for test in tests)
    if get_origin(wanted) is Literal:
        return lambda value: value in options
    if wanted in (int, float):
        kinds = (int, float) if wanted is float else int
        return lambda value: isinstance(value, kinds) and not isinstance(value, bool)
    return lambda value: isinstance(value, wanted)


def _is_union(wanted: Any) -> bool:
    return get_origin(wanted) in (Union, types.UnionType)


def check_type(name: str, value: Any, wanted: Any) -> None:
    if not fits(value, wanted):
        raise TypeError(f"{name}={value!r} has the wrong type; pass {describe(wanted)}.")


def check_name(what: str, name: Any, names: Iterable[str]) -> None:
    if name not in names:
        raise ValueError(f"{what} {name!r} is unknown{did_you_mean(str(name), names)}")


def check_at_least(name: str, value: float | None, least: float) -> None:
    if value is not None and not least <= value < math.inf:
        raise ValueError(f"{name}={value} is out of range; pass {name} >= {least}.")


def check_step_or_fraction(name: str, value: int | float | None) -> None:
    if isinstance(value, float) and not 0 <= value < 1:
        raise ValueError(f"{name}={value} is out of range; pass a fraction of the run, below 1, or a whole step.")
    check_at_least(name, value, 0)


def check_fraction(name: str, value: float | None) -> None:
    if value is not None and not 0 <= value < 1:
        raise ValueError(f"{name}={value} is out of range; pass 0 <= {name} < 1.")
