"""Whose run a folder holds, and that all processes of a run mean the same one."""

import json
import math
import pathlib

import jax

from looksam.train import processes
from looksam.train.errors import RunError
from looksam.train.recipe import Recipe, differences

# how far, where from and by how many hands: what does not change any step or line of metrics
FREE_TO_CHANGE = ("steps", "workers", "data_dir", "download", "checkpoint_every", "keep_checkpoints")
# what changes a step by rounding alone (and the statistics of BatchNorm, which are of a micro-batch)
FREE_TO_ROUND = ("mesh", "microbatch")


def check_alike(recipe: Recipe) -> None:
    """RunError, in all of them, where the processes of a run were given different settings."""
    if jax.process_count() == 1:
        return
    theirs = Recipe.from_json(json.dumps(processes.handed_on_json(recipe.to_dict())))
    changes = _changes(recipe, theirs, ("data_dir", "workers"))
    if not processes.any_of(bool(changes)):
        return
    who = f"process 0 has other settings ({changes})" if changes else "another process has other settings than this one"
    raise RunError(f"{who}; start all processes by the same command.")


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
    changes = _changes(recipe, theirs, FREE_TO_CHANGE + FREE_TO_ROUND)
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


def _changes(ours: Recipe, theirs: Recipe, free: tuple[str, ...]) -> str:
    pairs = {name: pair for name, pair in differences(ours, theirs).items() if name not in free}
    return ", ".join(f"{name}: {there!r} there, {here!r} here" for name, (here, there) in pairs.items())
