"""The folder of a run: the recipe it belongs to, versions of files, and errors for the user.

``recipe.json`` is ``{"version": 2, "recipe": {…}}``: every setting of the run, as resolved. It is written after the
first step: from then on the folder belongs to the run. Runs of version 1 can be read but not resumed, because their
``metrics.jsonl`` has training accuracies as fractions.
"""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from looksam.trainer.data.reading import data_folder
from looksam.trainer.recipe import Recipe, differences

NAME = "recipe.json"
VERSION = 2
READABLE = (1, VERSION)
# how far, where from, by how many workers and who watches: what does not change any step or line of metrics
FREE_TO_CHANGE = (
    *("steps", "patience", "max_minutes", "workers", "data_dir", "download", "checkpoint_every", "keep_checkpoints"),
    *("tensorboard", "wandb"),
)
# what changes a step by rounding alone (and the statistics of BatchNorm, which are of a micro-batch)
FREE_TO_ROUND = ("mesh", "microbatch")
RESTORE_IT = "restore it from a copy, or start in a new --run-dir"


class RunError(RuntimeError):
    """A run cannot continue. The message says what happened, what is safe, and how to resume."""


@contextlib.contextmanager
def writing_to(directory: pathlib.Path) -> Iterator[None]:
    """Turns an OSError into a RunError about the run's folder."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write to {directory}: {error.strerror}; pass another --run-dir.") from error


def claim(directory: pathlib.Path, recipe: Recipe) -> None:
    """Makes the folder this recipe's own, if it is no run's yet."""
    if not holds_run(directory):
        with writing_to(directory):
            write_recipe(directory, _with_absolute_data_dir(_with_group_count(recipe)))


def holds_run(directory: pathlib.Path) -> bool:
    """Returns whether the folder belongs to a run: whether a step was taken there."""
    return (directory / NAME).exists()


def check_recipe(directory: pathlib.Path, recipe: Recipe) -> None:
    """Raises RunError where the folder holds the run of another recipe, or one that an older version began."""
    if not holds_run(directory):
        return
    stored = read_recipe(directory, versions=(VERSION,))
    changes = changes_between(_with_group_count(recipe), stored, FREE_TO_CHANGE + FREE_TO_ROUND)
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


def _with_absolute_data_dir(recipe: Recipe) -> Recipe:
    """Returns the recipe with the path of its data as seen from anywhere."""
    folder = data_folder(recipe.data_dir)
    if folder is None or recipe.dataset == "digits":  # which has no files
        return recipe
    return recipe.replace(data_dir=str(folder))


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


def read_recipe(directory: pathlib.Path, versions: tuple[int, ...] = READABLE) -> Recipe:
    """Returns the recipe of the run in a folder. Raises RunError where there is none, or one of another version."""
    path = pathlib.Path(directory) / NAME
    if not path.exists():
        raise RunError(f"{directory} holds no run: there is no {NAME}; pass the folder of `looksam train`.")
    try:
        stored = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not JSON ({error})"
        raise RunError(f"{path} is damaged: {reason}; {RESTORE_IT}.") from error
    version = stored.get("version") if isinstance(stored, dict) else None
    if version not in versions:
        check_version(str(path), version, VERSION, "start in a new --run-dir")
    try:
        return Recipe.from_json(json.dumps(stored["recipe"]))
    except KeyError:
        raise RunError(f"{path} is damaged: it holds no recipe; {RESTORE_IT}.") from None
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} is damaged, or of another looksam: {str(error).rstrip('.')}; {RESTORE_IT}.") from error


def check_version(what: str, version: Any, ours: int, otherwise: str) -> None:
    """Raises RunError, with both versions and the fix, where a file's format is not the one that is read here."""
    if version == ours:
        return
    if version is None:
        raise RunError(
            f"{what} has no format version: it was written before formats carried one, and this looksam reads version "
            f"{ours}. Read it with the looksam that wrote it, or {otherwise}."
        )
    if not isinstance(version, int):
        raise RunError(f"{what} is damaged: its format version is {version!r}; restore it from a copy, or {otherwise}.")
    age, fix = ("a newer", "upgrade looksam") if version > ours else ("an older", "install the looksam that wrote it")
    raise RunError(
        f"{what} has format version {version}, written by {age} looksam, and this one reads version {ours}; "
        f"{fix}, or {otherwise}."
    )


def changes_between(ours: Recipe, theirs: Recipe, free: tuple[str, ...]) -> str:
    """Returns the settings that differ between two recipes, besides those that may, as text for a message."""
    pairs = {name: pair for name, pair in differences(ours, theirs).items() if name not in free}
    return ", ".join(f"{name}: {there!r} there, {here!r} here" for name, (here, there) in pairs.items())
