"""The folder of a run: the recipe it belongs to, versions of files, and errors for the user.

``recipe.json`` is ``{"version": 1, "recipe": {…}}``: every setting of the run, as resolved.
"""

import json
import math
import os
import pathlib
from typing import Any

from looksam.trainer.recipe import Recipe, differences

NAME = "recipe.json"
VERSION = 1
# how far, where from and by how many workers: what does not change any step or line of metrics
FREE_TO_CHANGE = ("steps", "workers", "data_dir", "download", "checkpoint_every", "keep_checkpoints")
# what changes a step by rounding alone (and the statistics of BatchNorm, which are of a micro-batch)
FREE_TO_ROUND = ("mesh", "microbatch")


class RunError(RuntimeError):
    """A run cannot continue. The message says what happened, what is safe, and how to resume."""


def claim(directory: pathlib.Path, recipe: Recipe) -> pathlib.Path:
    """Makes the folder this recipe's own. Raises RunError where it holds the run of another recipe."""
    recipe = _with_group_count(recipe)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / NAME).exists():
            write_recipe(directory, recipe)
    except OSError as error:
        raise RunError(f"cannot write to {directory}: {error.strerror}; pass another --run-dir.") from error
    check_recipe(directory, recipe)
    return directory


def check_recipe(directory: pathlib.Path, recipe: Recipe) -> None:
    """Raises RunError where the folder holds the run of another recipe."""
    if not (directory / NAME).exists():
        return
    changes = changes_between(recipe, read_recipe(directory), FREE_TO_CHANGE + FREE_TO_ROUND)
    if changes:
        raise RunError(
            f"{directory} holds a run of another recipe ({changes}); pass another --run-dir, or its settings."
        )


def _with_group_count(recipe: Recipe) -> Recipe:
    """Returns the recipe with a number in place of groups="device", which other devices would make another number."""
    if recipe.groups != "device":
        return recipe
    import jax  # here, so that the command line can report a RunError without loading it

    return recipe.replace(groups=math.prod(recipe.mesh_sizes() or (jax.device_count(),)))


def write_recipe(directory: pathlib.Path, recipe: Recipe) -> None:
    """Writes ``recipe.json``, atomically."""
    text = json.dumps({"version": VERSION, "recipe": recipe.to_dict()}, indent=1) + "\n"
    write_atomically(directory / NAME, text.encode())


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Writes a file such that a crash leaves the old one or the new one, never a part of it."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_recipe(directory: pathlib.Path) -> Recipe:
    """Returns the recipe of the run in a folder. Raises RunError where there is none, or one of another version."""
    path = pathlib.Path(directory) / NAME
    if not path.exists():
        raise RunError(f"{directory} holds no run: there is no recipe.json; pass the folder of `looksam train`.")
    try:
        stored = json.loads(path.read_text())
    except ValueError as error:
        raise RunError(f"{path} is damaged: it is not JSON ({error}); start in a new --run-dir.") from error
    version = stored.get("version") if isinstance(stored, dict) else None
    check_version(str(path), version, VERSION, "start in a new --run-dir")
    return Recipe.from_json(json.dumps(stored["recipe"]))


def check_version(what: str, version: Any, ours: int, otherwise: str) -> None:
    """Raises RunError, with both versions and the fix, where a file's format is not the one that is read here."""
    if version == ours:
        return
    if version is None:
        raise RunError(
            f"{what} has no format version: it was written before formats carried one, and this looksam reads version "
            f"{ours}. Read it with the looksam that wrote it, or {otherwise}."
        )
    age, fix = ("a newer", "upgrade looksam") if version > ours else ("an older", "install the looksam that wrote it")
    raise RunError(
        f"{what} has format version {version}, written by {age} looksam, and this one reads version {ours}; "
        f"{fix}, or {otherwise}."
    )


def changes_between(ours: Recipe, theirs: Recipe, free: tuple[str, ...]) -> str:
    """Returns the settings that differ between two recipes, besides those that may, as text for a message."""
    pairs = {name: pair for name, pair in differences(ours, theirs).items() if name not in free}
    return ", ".join(f"{name}: {there!r} there, {here!r} here" for name, (here, there) in pairs.items())
