"""The parser: argparse with short errors, and one flag for each setting of a recipe.

The flags are argparse's own and not those of tyro, simple-parsing or jsonargparse: their errors (a box of eight lines,
"invalid int value") cannot be replaced by ours, which name the value and the closest flag in two lines, and they can
neither take their defaults from a recipe named on the same command line nor read ``none`` for every optional type.
"""

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import pathlib
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

from looksam.arguments import close_names
from looksam.cli import environment
from looksam.cli.output import USAGE, UsageError, usage
from looksam.methods import METHODS
from looksam.trainer import recipes
from looksam.trainer.own_code import check_exists
from looksam.trainer.recipe import SECTIONS, Recipe
from looksam.trainer.recipe_files import is_recipe_file
from looksam.trainer.setting_types import parse


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts no abbreviated flags, keeps line breaks, and suggests the closest flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Exit without argparse's usage, which would bury the message under a flag for every setting."""
        self.exit(USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments here, where the flags of the command are known, not in the parser above."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown)
        return namespace, unknown

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        flags = [word for word in words if word.startswith("-")]
        if not flags:
            self.error(f"{words[0]!r} is one argument too many")
        flag = flags[0].partition("=")[0]
        known = {name.lstrip("-"): name for name in self._option_string_actions if name.startswith("--")}
        close = " or ".join(known[name] for name in close_names(flag.lstrip("-"), known))
        self.error(f"there is no flag {flag}; {f'did you mean {close}?' if close else 'the help lists them all'}")


@dataclass(frozen=True)
class Command:
    """A command of ``looksam``. Importing its module must not import JAX; ``run`` may."""

    name: str
    help: str
    description: str
    examples: str  # the help's epilogue
    add_arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]

    def add_to(self, subparsers: Any) -> None:
        parser = subparsers.add_parser(self.name, help=self.help)
        parser.description, parser.epilog = self.description, self.examples
        parser.set_defaults(run=self.run, parser=parser)
        self.add_arguments(parser)


# Flags that several commands share.


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")


def add_recipe(parser: Parser) -> None:
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a name that `looksam recipes` lists, or a .py, .toml or .json"
    )


def add_quiet(parser: Parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def add_run(parser: Parser, what: str = "the folder of a run") -> None:
    """The folder of a run, and which of its checkpoints to read."""
    parser.add_argument("run_dir", metavar="RUN", help=what)
    parser.add_argument(
        "--checkpoint",
        type=_checkpoint,
        default="last",
        metavar="last|best|STEP",
        help="which checkpoint to read: the last, the best on the validation (or test) set, or a step (last)",
    )


def _checkpoint(text: str) -> str | int:
    if text not in ("last", "best") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a checkpoint; pass last, best or a step")
    return int(text) if text.isdecimal() else text


def add_processes(parser: Parser) -> None:
    group = parser.add_argument_group("several processes, each started by this same command")
    group.add_argument("--distributed", action="store_true", help="find the others through the cluster: SLURM, TPU pod")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="or by the address of process 0, with the next two")
    group.add_argument("--process-count", metavar="N", type=int, help="number of processes")
    group.add_argument("--process-index", metavar="I", type=int, help="index of this process, from 0")


def process_arguments(arguments: argparse.Namespace) -> tuple[str | None, int | None, int | None] | None:
    """(coordinator, count, index); None for a single process, (None, None, None) where the cluster knows them."""
    coordinator, count, index = arguments.coordinator, arguments.process_count, arguments.process_index
    given = [value for value in (coordinator, count, index) if value is not None]
    if not given:
        return (None, None, None) if arguments.distributed else None
    if arguments.distributed or len(given) < 3:
        raise UsageError(
            "pass --distributed alone, or all of --coordinator HOST:PORT, --process-count N and --process-index I"
        )
    if not re.fullmatch(r"\S+:\d+", coordinator):
        raise UsageError(f"--coordinator {coordinator!r} is not an address; pass HOST:PORT of process 0")
    if not 0 <= index < count:
        raise UsageError(f"--process-index {index} is not one of --process-count {count}; count from 0")
    return coordinator, count, index


# The settings of a recipe.


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
    """Every field of ``Recipe``, in order; the help is the docstring below the field."""
    sections = {name: title for title, names in SECTIONS.items() for name in names}
    texts = _docstrings()
    return tuple(Setting(f.name, f.type, sections[f.name], texts[f.name]) for f in dataclasses.fields(Recipe))


def add_settings(parser: Parser) -> None:
    """One flag per setting, grouped by section. A flag that is not given leaves nothing in the namespace."""
    groups: dict[str, Any] = {}
    for setting in settings():
        if setting.section not in groups:
            groups[setting.section] = parser.add_argument_group(setting.section)
        groups[setting.section].add_argument(setting.flag, **_options(setting))


def recipe_named(
    name: str, arguments: argparse.Namespace, prepare: Callable[[], None] = environment.prepare_jax
) -> Recipe:
    """The recipe of this name or in this file, with the given flags in place of its own values.

    ``prepare`` is called before code of the user's own runs, which may import JAX.
    """
    given = {s.name: getattr(arguments, s.name) for s in settings() if hasattr(arguments, s.name)}
    if recipes.is_code(name):
        prepare()
    with usage():
        recipe = recipes.find(name).recipe.replace(**given)
        check_exists("model", recipe.model)
        check_exists("dataset", recipe.dataset)
    return recipe


def run_name(recipe: str) -> str:
    """The name of a recipe in that of a run's folder: without the folder and the ending of a file."""
    return recipe if recipe in recipes.ALL or not is_recipe_file(recipe) else pathlib.Path(recipe).stem


def _docstrings() -> dict[str, str]:
    """The string literal below each field of ``Recipe``, with the methods that take the setting."""
    [recipe] = ast.parse(inspect.getsource(Recipe)).body
    assert isinstance(recipe, ast.ClassDef)
    texts = {}
    for field, text in itertools.pairwise(recipe.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            name = ast.unparse(field.target)
            texts[name] = ast.literal_eval(text.value) + _methods_with(name)
    return texts


def _methods_with(setting: str) -> str:
    """Return a note such as "(for look_sam)" if a setting is for rules alone, and not for all of them."""
    rules = [method for method in METHODS.values() if method.is_rule]
    of_rules = next(names for names in SECTIONS.values() if "method" in names)  # not momentum, the optimizer's too
    takers = [method.name for method in rules if setting in of_rules and setting in method.settings]
    return f" (for {', '.join(takers)})" if takers and len(takers) < len(rules) else ""


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
