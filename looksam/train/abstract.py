"""The programs of a recipe compiled ahead of time: shapes only, no data and no weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.data import Dataset, Images
from looksam.train.feed import Pace
from looksam.train.layout import Layout, OnMesh
from looksam.train.programs import Programs
from looksam.train.recipe import Recipe

# training images, classes, side and channels of the sets whose size is known without them
KNOWN = {"digits": (600, 10, 8, 1), "cifar100": (50_000, 100, 32, 3), "imagenet": (1_281_167, 1000, 224, 3)}

# Machine code is made in a hurry: the program is only looked at.
HURRY: dict[str, str | bool] = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}


def training_images(recipe: Recipe) -> int:
    """How many images an epoch of the recipe has, from what is known of its data set."""
    count, classes, *_ = _known(recipe)
    count = count * (recipe.classes or classes) // classes
    held_out = round(count * recipe.validation) if recipe.validation else 0
    return min(count - held_out, recipe.train_limit or count)


def total_steps(recipe: Recipe) -> int:
    return Pace.of(training_images(recipe), recipe).steps(recipe.epochs)


def compile_step(recipe: Recipe, layout: Layout, refresh: bool | None) -> jax.stages.Compiled:
    """One of the two programs of a step: with the second gradient, or without (None for the base optimizer)."""
    programs = Programs(recipe, _shape_of_data(recipe), total_steps(recipe), layout, lambda *batch: batch)
    batch = _batch(recipe, layout)
    return programs.step.lower(programs.restored(), refresh, *batch).compile(compiler_options=HURRY)


def _batch(recipe: Recipe, layout: Layout) -> tuple[Any, Any]:
    shape = recipe.batch_size, *_image_shape(recipe)
    where = layout.batch if isinstance(layout, OnMesh) else None
    images = jax.ShapeDtypeStruct(shape, jnp.uint8, sharding=where)
    return images, jax.ShapeDtypeStruct(shape[:1], jnp.int32, sharding=where)


def _shape_of_data(recipe: Recipe) -> Dataset:
    shape, classes = _image_shape(recipe), recipe.classes or _known(recipe)[1]
    none = Images(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32))
    half = (0.5,) * shape[2]
    return Dataset(recipe.dataset, none, none, classes, shape, mean=half, std=half)


def _image_shape(recipe: Recipe) -> tuple[int, int, int]:
    _, _, side, channels = _known(recipe)
    side = recipe.image_size or side
    return side, side, channels


def _known(recipe: Recipe) -> tuple[int, int, int, int]:
    if recipe.dataset not in KNOWN:
        raise ValueError(
            f"the size of dataset {recipe.dataset!r} is not known without its files; plan for {', '.join(KNOWN)}."
        )
    return KNOWN[recipe.dataset]
