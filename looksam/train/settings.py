"""Types of a recipe's settings: does a value fit, how is it called, and how is it read from a flag."""

import contextlib
import types
from typing import Any, Literal, Union, get_args, get_origin

from looksam.train.suggest import nearest


def fits(value: Any, wanted: Any) -> bool:
    if get_origin(wanted) in (Union, types.UnionType):
        return any(fits(value, option) for option in get_args(wanted))
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if wanted is type(None):
        return value is None
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def describe(wanted: Any) -> str:
    if get_origin(wanted) in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(wanted))
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(str, get_args(wanted)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}[wanted]


def parse(text: str, wanted: Any) -> Any:
    """The value a flag's text stands for. Raises ValueError, with a sentence for the user, where it stands for none."""
    if get_origin(wanted) in (Union, types.UnionType):
        return _parse_union(text, wanted)
    if get_origin(wanted) is Literal:
        if text not in get_args(wanted):
            raise ValueError(f"{text!r} is unknown{nearest(text, get_args(wanted))}")
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
