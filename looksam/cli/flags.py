"""One type-checked flag for each setting of a recipe, its help being the comment on the setting."""

import argparse
import dataclasses
import functools
import inspect
import io
import tokenize
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from looksam.trainer.recipe import Recipe, parse


class Setting(NamedTuple):
    """A field of ``Recipe``, as the command line shows it."""

    name: str
    type: Any
    section: str
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Every field of ``Recipe``, in order."""
    types_by_name = {field.name: field.type for field in dataclasses.fields(Recipe)}
    found = {name: (section, text) for name, section, text in _comments(inspect.getsource(Recipe), types_by_name)}
    return tuple(Setting(name, kind, *found.get(name, ("other settings", ""))) for name, kind in types_by_name.items())


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The flags, in a group for each section. A flag that is not given leaves nothing in the namespace."""
    groups: dict[str, Any] = {}
    for setting in settings():
        if setting.section not in groups:
            groups[setting.section] = parser.add_argument_group(setting.section)
        groups[setting.section].add_argument(setting.flag, **_options(setting))


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    return {s.name: getattr(arguments, s.name) for s in settings() if hasattr(arguments, s.name)}


def _comments(source: str, names: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, section, help) of the fields: a comment of its own starts a section, one behind a field is its help."""
    section = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("# ")
        name = token.line.partition(":")[0].strip()
        if token.line.lstrip().startswith("#"):
            section = text
        elif name in names:
            yield name, section, text


def _options(setting: Setting) -> dict[str, Any]:
    shared = {"dest": setting.name, "default": argparse.SUPPRESS, "help": setting.help.replace("%", "%%")}
    if setting.type is bool:
        return shared | {"action": argparse.BooleanOptionalAction}
    return shared | {"type": _reader(setting.type), "metavar": _placeholder(setting.type)}


def _reader(wanted: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return parse(text, wanted)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _placeholder(wanted: Any) -> str:
    if get_origin(wanted) in (Union, types.UnionType):
        return "|".join(_placeholder(option) for option in get_args(wanted))
    if get_origin(wanted) is Literal:
        return "|".join(get_args(wanted))
    return {int: "N", float: "X", str: "TEXT", type(None): "none"}[wanted]
