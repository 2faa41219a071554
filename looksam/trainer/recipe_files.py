"""Recipes in files: an ordinary Python module with a ``recipe``, or the settings as TOML or JSON.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "short.toml"
>>> _ = path.write_text('model = "mlp"\\nepochs = 3')
>>> read_recipe_file(path).epochs
3

Settings that a file leaves out have their defaults. The ``recipe.json`` of a run is such a file. A relative file in
``model`` or ``dataset`` is relative to the recipe's own folder.
"""

import json
import pathlib
import re
import tomllib
from typing import Any

from looksam.arguments import did_you_mean
from looksam.trainer import own_code
from looksam.trainer.own_code import OwnCodeError
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import VERSION, check_version

SUFFIXES = (".py", ".toml", ".json")
OWN_NAMES = ("model", "dataset")  # settings that may name a file


def is_recipe_file(name: str) -> bool:
    """Returns whether a name is that of a file, and not of a recipe in a package."""
    return name.endswith(SUFFIXES) or pathlib.Path(name).exists()


def read_recipe_file(path: str | pathlib.Path) -> Recipe:
    """Returns the recipe in a file; an error names the file, the line, the value and the fix."""
    path = pathlib.Path(path)
    if path.is_dir():
        fix = f"pass {path / 'recipe.json'}" if (path / "recipe.json").exists() else "pass a file"
        raise OwnCodeError(f"{path} is a folder, not a recipe; {fix}, or a name that `looksam recipes` lists.")
    if path.suffix not in SUFFIXES:
        raise OwnCodeError(f"{path} is not a recipe; pass a file that ends in {', '.join(SUFFIXES)}.")
    if not path.is_file():
        near = [file.name for file in path.parent.glob("*") if file.suffix in SUFFIXES]
        hint = did_you_mean(path.name, near, "pass the path of a recipe")
        raise OwnCodeError(f"there is no file {path}{hint}")
    return _from_python(path) if path.suffix == ".py" else _from_text(path)


def _from_python(path: pathlib.Path) -> Recipe:
    module = own_code.load_file(path)
    if not hasattr(module, "recipe"):
        others = [name for name, value in vars(module).items() if isinstance(value, Recipe)]
        hint = f"; rename {others[0]!r}" if others else ""
        raise OwnCodeError(f"{path} has no 'recipe'; assign one at its top level, recipe = Recipe(...){hint}.")
    recipe = module.recipe
    if not isinstance(recipe, Recipe):
        raise OwnCodeError(f"{path}: recipe is a {type(recipe).__name__}; assign a looksam.trainer.Recipe.")
    return recipe


def _from_text(path: pathlib.Path) -> Recipe:
    text = path.read_text(encoding="utf-8")
    try:
        settings = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:  # both name the line
        raise OwnCodeError(f"{path} is not {path.suffix[1:].upper()}: {error}") from error
    if isinstance(settings, dict) and "recipe" in settings:  # recipe.json of a run
        check_version(str(path), settings.get("version"), VERSION, "copy its settings into a file of their own")
        settings = settings["recipe"]
    if not isinstance(settings, dict):
        raise OwnCodeError(f"{path} holds a {type(settings).__name__}; a recipe is settings with their values.")
    for name in (name for name, value in settings.items() if isinstance(value, dict)):
        raise OwnCodeError(f"{path}{_line(text, name, settings)}: {name!r} is a table; put settings at the top level.")
    try:
        return Recipe.from_dict({name: _relative_to(path.parent, name, settings[name]) for name in settings})
    except (ValueError, TypeError) as error:
        raise OwnCodeError(f"{path}{_line(text, str(error), settings)}: {error}") from error


def _relative_to(folder: pathlib.Path, name: str, value: Any) -> Any:
    if name in OWN_NAMES and isinstance(value, str) and own_code.is_reference(value):
        return own_code.absolute(value, folder)
    return value


def _line(text: str, message: str, settings: dict[str, Any]) -> str:
    """Returns ", line n" of the first setting that a message mentions."""
    for word in re.findall(r"\w+", message):
        found = word in settings and re.search(rf"^\W*{word}\"?\s*[]:=]", text, re.MULTILINE)
        if found:
            return f", line {text.count(chr(10), 0, found.end()) + 1}"
    return ""
