"""The compiled programs of a recipe, and the training that they make up together with its data.

``Training`` is what the loop drives: it takes the batch of a step from ``batches.py`` and runs on it the program
compiled from ``step.py``. ``compile_step`` compiles the same programs ahead of time, from shapes alone.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from looksam.rules import Rule
from looksam.trainer.batches import (
    EpochSchedule,
    Split,
    TrainBatches,
    load,
    make_eval_batches,
    make_train_batches,
    read,
    reading,
)
from looksam.trainer.data import Dataset, Images
from looksam.trainer.models import Model, build_model, find_builder
from looksam.trainer.optimizers import make_optimizer, make_rule
from looksam.trainer.parallel import BatchSplit, Layout, MeshLayout, make_layout
from looksam.trainer.parameter_paths import check_paths
from looksam.trainer.recipe import Recipe
from looksam.trainer.step import (
    Metrics,
    Refresh,
    TrainState,
    init_state,
    make_eval_step,
    make_train_step,
    refresh_of,
)


class Training:
    """A recipe, its data and its programs: ``step`` takes one training step, ``evaluate`` reads the whole test set."""

    def __init__(self, recipe: Recipe, dataset: Dataset | None = None) -> None:
        self.recipe = recipe
        self.layout = make_layout(recipe.mesh_sizes())
        BatchSplit.of(recipe, self.layout.devices)  # raises before the data is read,
        find_builder(recipe.model)  # and so does this
        self.dataset = load(recipe) if dataset is None else dataset
        self.batches: TrainBatches = make_train_batches(self.dataset, recipe, self.layout)
        self.epoch_schedule = self.batches.epoch_schedule
        self.total_steps = self.epoch_schedule.steps(recipe.epochs)
        self.programs = Programs(recipe, self.dataset, self.total_steps, self.layout, self.batches.to_batch)

    def init(self) -> TrainState:
        """The state at step 0, from the recipe's seed."""
        return self.programs.init(self.recipe.seed)

    def step(self, state: TrainState, i: int, log: bool = True) -> tuple[TrainState, Metrics]:
        """Take step i of the run. ``log=False`` saves what is computed for the metrics alone (see ``step.py``)."""
        with reading():
            arguments = self.batches.arguments(i)
        return self.programs.step(state, self.programs.refreshes(i), *arguments, log=np.bool_(log))

    def evaluate(self, state: TrainState, split: Split = "test") -> dict[str, float]:
        """The mean loss and the accuracy in percent on the test or validation split, each image counted once."""
        batches = make_eval_batches(self.dataset, self.recipe, self.layout, split)
        with reading():
            sums = [self.programs.evaluate(state.params, state.stats, *batch) for batch in batches]
        loss, hits, images = (sum(float(part[name]) for part in sums) for name in ("loss", "hits", "images"))
        return {"loss": loss / images, "accuracy": 100 * hits / images}


class Programs:
    """The jitted functions of a recipe.

    - ``init(seed)`` returns the state at step 0, created on the devices where it lives.
    - ``step(state, refresh, *arguments, log=False)`` returns the next state and the metrics. The state is donated, and
      the new one has the same shardings, so that a step compiles once per value of ``refresh``: the host knows which
      steps refresh, and the programs of the others contain a single gradient. Outside a rule's window nothing is left
      of it but its count.
    - ``evaluate(params, stats, *batch)`` returns the sums of ``make_eval_step``.

    Args:
      to_batch: turns the ``arguments`` of a step into images and labels.
      rule: in place of the recipe's own, which is the default.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        total_steps: int,
        layout: Layout,
        to_batch: Callable[..., tuple[jax.Array, jax.Array]],
        rule: Rule | None = None,
    ) -> None:
        self.model = model = make_model(recipe, dataset)
        check_paths(recipe, model)
        tx = make_optimizer(recipe, total_steps)
        self.rule: Rule | None = rule or make_rule(recipe, total_steps)
        train_step = make_train_step(recipe, dataset, model, self.rule, tx, layout)

        def init(seed: Any) -> TrainState:
            return init_state(jax.random.key(seed), model, self.rule, tx, recipe.freeze)

        def step(
            state: TrainState, refresh: Refresh, *arguments: jax.Array, log: bool | jax.Array = False
        ) -> tuple[TrainState, Metrics]:
            return train_step(state, *to_batch(*arguments), refresh, log)

        shapes = jax.eval_shape(init, 0)
        shardings = layout.shardings(shapes)
        # The state as shapes, dtypes and shardings: what a checkpoint is restored as.
        self.abstract_state: TrainState = jax.tree.map(_with_sharding, shapes, shardings)
        self.init = jax.jit(init, out_shardings=shardings)
        self.step = jax.jit(step, static_argnums=1, donate_argnums=0, out_shardings=(shardings, layout.replicated))
        self.evaluate = jax.jit(make_eval_step(dataset, model, layout), out_shardings=layout.replicated)

    def refreshes(self, step: int) -> bool | None:
        """Whether this step takes the second gradient; None where no rule acts on it."""
        return refresh_of(self.rule, step)


def make_model(recipe: Recipe, dataset: Dataset) -> Model:
    """The model of a recipe, for the images and classes of a dataset."""
    return build_model(
        recipe.model,
        image_shape=dataset.image_shape,
        num_classes=dataset.num_classes,
        dtype=jnp.dtype(recipe.dtype),
        **recipe.model_options(),
    )


def _with_sharding(shape: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


# --- ahead of time ------------------------------------------------------------------------------------------------


class DatasetSize(NamedTuple):
    """The size of a dataset."""

    train_images: int
    classes: int
    image_shape: tuple[int, int, int]


DATASET_SIZES = {  # that are known without their files
    "digits": DatasetSize(600, 10, (8, 8, 1)),
    "cifar100": DatasetSize(50_000, 100, (32, 32, 3)),
    "imagenet": DatasetSize(1_281_167, 1000, (224, 224, 3)),
}

# The settings with which a dataset is read.
READ_BY = (
    *("dataset", "data_dir", "download", "on_bad_image", "image_column", "label_column", "num_classes", "test_split"),
    "image_size",
)

# The programs are only inspected, never run: machine code need not be good.
FAST_COMPILE: dict[str, str | bool] = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}


def trace_step(recipe: Recipe, layout: Layout, refresh: bool | None) -> jax.stages.Traced:
    """Trace a step without data or weights: with the second gradient, without, or of the base optimizer (None).

    It is the program of a step that is not logged.
    """
    programs = Programs(recipe, abstract_dataset(recipe), total_steps(recipe), layout, lambda *batch: batch)
    return programs.step.trace(programs.abstract_state, refresh, *_abstract_batch(recipe, layout))


def compile_step(recipe: Recipe, layout: Layout, refresh: bool | None) -> jax.stages.Compiled:
    """Compile the step that ``trace_step`` traces."""
    return trace_step(recipe, layout, refresh).lower().compile(compiler_options=FAST_COMPILE)


def total_steps(recipe: Recipe) -> int:
    """The number of steps of a run, from the known size of its dataset."""
    return EpochSchedule.of(training_images(recipe), recipe).steps(recipe.epochs)


def training_images(recipe: Recipe) -> int:
    """The number of training images of a recipe, from the known size of its dataset."""
    size = dataset_size(recipe)
    count = size.train_images * (recipe.classes or size.classes) // size.classes
    held_out = round(count * recipe.validation) if recipe.validation else 0
    return min(count - held_out, recipe.train_limit or count)


def dataset_size(recipe: Recipe) -> DatasetSize:
    """The size of a recipe's dataset, before classes or images are left out; read from its files if need be."""
    if recipe.dataset in DATASET_SIZES:
        return DATASET_SIZES[recipe.dataset]
    return _size_on_disk(Recipe(**{name: getattr(recipe, name) for name in READ_BY}))


@functools.lru_cache(maxsize=8)
def _size_on_disk(recipe: Recipe) -> DatasetSize:
    try:
        dataset = read(recipe)
    except FileNotFoundError as error:
        known = ", ".join(DATASET_SIZES)
        raise ValueError(f"the size of this dataset is read from its files: {error} It is known of {known}.") from error
    return DatasetSize(len(dataset.train), dataset.num_classes, dataset.image_shape)


def parameter_count(recipe: Recipe, dataset: Dataset) -> int:
    """The number of parameters of the recipe's model."""
    params, _ = jax.eval_shape(make_model(recipe, dataset).init, jax.random.key(0))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(params))


def abstract_dataset(recipe: Recipe) -> Dataset:
    """A dataset of a recipe's image shape and classes, without images."""
    shape = _image_shape(recipe)
    empty = Images(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32))
    half = (0.5,) * shape[2]
    classes = recipe.classes or dataset_size(recipe).classes
    return Dataset(recipe.dataset, empty, empty, classes, shape, mean=half, std=half)


def _image_shape(recipe: Recipe) -> tuple[int, int, int]:
    height, width, channels = dataset_size(recipe).image_shape
    return recipe.image_size or height, recipe.image_size or width, channels


def _abstract_batch(recipe: Recipe, layout: Layout) -> tuple[Any, Any]:
    sharding = layout.batch_sharding if isinstance(layout, MeshLayout) else None
    images = jax.ShapeDtypeStruct((recipe.batch_size, *_image_shape(recipe)), jnp.uint8, sharding=sharding)
    return images, jax.ShapeDtypeStruct((recipe.batch_size,), jnp.int32, sharding=sharding)
