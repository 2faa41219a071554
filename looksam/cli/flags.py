"""One type-checked flag for each setting of a recipe, its help being the docstring below the setting."""

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from looksam.trainer.recipe import SECTIONS, Recipe, parse


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
    sections, texts = {name: title for title, names in SECTIONS.items() for name in names}, _docstrings()
    return tuple(Setting(f.name, f.type, sections[f.name], texts[f.name]) for f in dataclasses.fields(Recipe))


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


def _docstrings() -> dict[str, str]:
    """The string literal below each field of ``Recipe``."""
    [recipe] = ast.parse(inspect.getsource(Recipe)).body
    assert isinstance(recipe, ast.ClassDef)
    texts = {}
    for field, text in itertools.pairwise(recipe.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            texts[ast.unparse(field.target)] = ast.literal_eval(text.value)
    return texts


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
