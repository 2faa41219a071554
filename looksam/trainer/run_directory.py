"""Failures of a run that are for its user to read.

Whose run a folder holds, and that all processes of a run mean the same one.
"""

import math
import pathlib

import jax

from looksam.trainer.recipe import Recipe, differences


class RunError(RuntimeError):
    """A run cannot go on. The message says what happened, what is safe, and how to go on."""


# how far, where from and by how many hands: what does not change any step or line of metrics
FREE_TO_CHANGE = ("steps", "workers", "data_dir", "download", "checkpoint_every", "keep_checkpoints")
# what changes a step by rounding alone (and the statistics of BatchNorm, which are of a micro-batch)
FREE_TO_ROUND = ("mesh", "microbatch")


def claim(directory: pathlib.Path, recipe: Recipe) -> pathlib.Path:
    """Make the folder this recipe's own, or refuse one that holds another's run."""
    recipe, saved = _counted(recipe), directory / "recipe.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not saved.exists():
            partial = directory / "recipe.json.partial"
            partial.write_text(recipe.to_json())
            partial.rename(saved)
    except OSError as error:
        raise RunError(f"cannot write to {directory}: {error.strerror}; pass another --run-dir.") from error
    theirs = read_recipe(directory)
    changes = changes_between(recipe, theirs, FREE_TO_CHANGE + FREE_TO_ROUND)
    if changes:
        raise RunError(
            f"{directory} holds a run of another recipe ({changes}); pass another --run-dir, or its settings."
        )
    return directory


def _counted(recipe: Recipe) -> Recipe:
    """With the number of groups in place of "device": on other devices that would be another number."""
    if recipe.groups != "device":
        return recipe
    return recipe.replace(groups=math.prod(recipe.mesh_sizes() or (jax.device_count(),)))


def read_recipe(directory: pathlib.Path) -> Recipe:
    path = directory / "recipe.json"
    if not path.exists():
        raise RunError(f"{directory} holds no run: there is no recipe.json; pass the folder of `looksam train`.")
    return Recipe.from_json(path.read_text())


def changes_between(ours: Recipe, theirs: Recipe, free: tuple[str, ...]) -> str:
    pairs = {name: pair for name, pair in differences(ours, theirs).items() if name not in free}
    return ", ".join(f"{name}: {there!r} there, {here!r} here" for name, (here, there) in pairs.items())
