"""The first weights of a run that starts from others: from a run, an export, or public weights.

Every parameter of the model has to be there, with its shape. Two may differ: the head, which starts anew if the classes
are others, and the position embeddings of a ViT, which are resized to another grid of patches.
"""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.trainer.data import Dataset
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import NAME as RECIPE_FILE
from looksam.trainer.run_folder.run_directory import RunError
from looksam.trainer.step import TrainState
from looksam.trainer.trained.trained_model import TrainedModel, architecture
from looksam.trainer.trained.weights import Weights, flat, from_torch, read_weights, rebuilt, torch_name
from looksam.trainer.training import Training

UNUSED = ("num_batches_tracked",)  # of PyTorch's BatchNorm, which with a fixed momentum does not use it
OPTIONS = ("pooling", "gelu", "heads")  # that change what a model computes, and not the shapes of its parameters


def with_initial_weights(training: Training, state: TrainState, report: Callable[[str], None]) -> TrainState:
    """Returns the state of step 0 with the weights of ``recipe.init_from``, if the recipe has one.

    The state of the rule and of the optimizer stays as it is: it does not depend on the weights.
    """
    if training.recipe.init_from is None:
        return state
    found = initial_weights(training.recipe, training.dataset, state.params, state.stats, report)
    params, stats = jax.tree.map(_placed, found, (state.params, state.stats))
    return state._replace(params=params, stats=stats)


def _placed(value: Any, like: jax.Array) -> jax.Array:
    if isinstance(value, jax.Array):  # of a new head
        return value
    placed = jax.make_array_from_callback(like.shape, like.sharding, lambda index: value[index])
    return jnp.copy(placed)  # a step donates its arrays, and this one may be the host's memory


def check_source(recipe: Recipe) -> None:
    """Raises RunError, before any data is read, where ``recipe.init_from`` does not exist."""
    if recipe.init_from is not None and not pathlib.Path(recipe.init_from).exists():
        raise RunError(
            f"init_from={recipe.init_from!r} is neither a file nor a folder; pass the folder of a run or of an export, "
            "or a .safetensors file."
        )


def initial_weights(
    recipe: Recipe, dataset: Dataset, params: Any, stats: Any, report: Callable[[str], None]
) -> tuple[Any, Any]:
    """Returns the parameters and statistics of ``recipe.init_from`` for the recipe's model, as NumPy arrays.

    Args:
      recipe: the recipe of the new run.
      dataset: its data: the head is kept only if the classes are the same.
      params: the model's own first parameters, of which a new head is taken as it is.
      stats: the model's own running statistics.
      report: takes one line about what was kept, resized and left out.
    """
    source = read_source(pathlib.Path(str(recipe.init_from)))
    builder, options = architecture(recipe)
    notes = _check_options(recipe, options, source)
    arrays = dict(source.arrays)
    if builder == "vit" and options["pooling"] == "mean" and "token" in arrays:
        arrays["position"] = arrays["position"][len(arrays["position"]) - _patches(arrays["position"]) :]
        del arrays["token"]
    own = flat(params, stats)
    new_head = _has_new_head(source, dataset.class_names)
    if new_head:
        notes.append(f"the head is new ({new_head})")
        arrays = {name: value for name, value in arrays.items() if not name.startswith("head.")}
    if builder == "vit" and "position" in arrays:
        grid = (dataset.image_shape[0] // options["patch"], dataset.image_shape[1] // options["patch"])
        arrays["position"], note = _fitted_positions(arrays["position"], source, grid, own["position"].shape[0])
        notes += [note] if note else []
    filled = {
        path: value if new_head and path.startswith("head/") else _taken(path, value.shape, arrays, source)
        for path, value in own.items()
    }
    _check_all_used(arrays, own, source)
    report("; ".join([f"starting from {source.where}", *notes]))
    return rebuilt(params, filled), rebuilt(stats, filled)


def read_source(path: pathlib.Path) -> Weights:
    """Reads the weights of a run's last checkpoint, of an export, or of a safetensors file."""
    if not (path / RECIPE_FILE).is_file():
        return read_weights(path)
    model = TrainedModel.of_run(path)
    return Weights(str(path), model.torch_arrays(), model.options, model.class_names, model.grid)


def _check_options(recipe: Recipe, options: dict[str, Any], source: Weights) -> list[str]:
    """Raises where the weights are of a model that computes otherwise, unless the recipe asks for the difference."""
    others = [name for name in OPTIONS if name in options and source.made_for.get(name, options[name]) != options[name]]
    unasked = [name for name in others if getattr(recipe, name) is None]
    if unasked:
        there = ", ".join(f"{name}={source.made_for[name]}" for name in unasked)
        here = ", ".join(f"{name}={options[name]}" for name in unasked)
        flags = " ".join(f"--{name} {source.made_for[name]}" for name in unasked)
        raise RunError(f"{source.where} is of a model with {there}, and {recipe.model} has {here}; pass {flags}.")
    return [f"with {name}={options[name]} in place of {source.made_for[name]}" for name in others]


def _has_new_head(source: Weights, class_names: tuple[str, ...]) -> str:
    """Returns why the head starts anew; empty if it is kept."""
    count = len(class_names)
    if "head.weight" not in source.arrays:
        return "the weights have none"
    there = source.arrays["head.weight"].shape[0]
    if there != count:
        return f"{count} classes in place of {there}"
    if source.class_names is not None and source.class_names != class_names:
        return "the classes have other names, or another order"
    return ""


def _taken(path: str, shape: tuple[int, ...], arrays: dict[str, np.ndarray], source: Weights) -> np.ndarray:
    name = torch_name(path)
    if name not in arrays:
        raise RunError(
            f"{source.where} lacks {name!r}, which the model has; pass --model and its sizes as they were trained."
        )
    value = from_torch(path, arrays[name], shape)
    if value is None:
        raise RunError(
            f"{source.where} has {name!r} with shape {arrays[name].shape}, which does not fit {path!r} of the model, "
            f"{shape}; pass --model and its sizes as they were trained."
        )
    return value


def _check_all_used(arrays: dict[str, np.ndarray], own: dict[str, Any], source: Weights) -> None:
    known = {torch_name(path) for path in own}
    extra = sorted(name for name in arrays if name not in known and not name.endswith(UNUSED))
    if extra:
        raise RunError(
            f"{source.where} has {extra[0]!r}, which the model has not ({len(extra)} such names); pass --model and its "
            "sizes as they were trained."
        )


# --- position embeddings ------------------------------------------------------------------------------------------


def _fitted_positions(
    position: np.ndarray, source: Weights, grid: tuple[int, int], tokens: int
) -> tuple[np.ndarray, str]:
    """Returns the position embeddings for a grid of patches, and a note if they had to be resized."""
    patches = _patches(position) if source.grid is None else math.prod(source.grid)
    side = math.isqrt(patches)
    old = source.grid or (side, side)
    first = position[: len(position) - patches]  # the class token's own, if it has one
    missing = tokens - math.prod(grid) - len(first)  # ViTs whose class token has no position of its own
    first = np.concatenate([first, np.zeros((max(missing, 0), position.shape[1]), np.float32)])
    if old == grid:
        return np.concatenate([first, position[len(position) - patches :]]), ""
    resized = resize_positions(position[len(position) - patches :], old, grid)
    note = f"position embeddings resized from {old[0]}×{old[1]} to {grid[0]}×{grid[1]} patches"
    return np.concatenate([first, resized]), note


def _patches(position: np.ndarray) -> int:
    """Returns how many rows belong to patches: all, or all but the class token's, whichever is a square."""
    count = len(position)
    return count if math.isqrt(count) ** 2 == count else count - 1


def resize_positions(position: np.ndarray, old: tuple[int, int], new: tuple[int, int]) -> np.ndarray:
    """Resizes position embeddings (rows · columns, width) to another grid, bicubic with antialiasing, as timm does."""
    width = position.shape[1]
    grid = jnp.asarray(position).reshape(*old, width)
    resized = jax.image.resize(grid, (*new, width), "bicubic", antialias=True)
    return np.asarray(resized).reshape(-1, width)
