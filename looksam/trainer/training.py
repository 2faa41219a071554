"""The compiled programs of a recipe: the first state, a step with or without the second gradient, and evaluation.

A recipe made real: its data and the programs that work on it.

The programs of a recipe compiled ahead of time: shapes only, no data and no weights.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.rules import Rule
from looksam.trainer.batches import Feed, Pace, load, make_eval_batches, make_feed
from looksam.trainer.data import Dataset, Images
from looksam.trainer.models import Model, build_model
from looksam.trainer.optimizers import make_optimizer, make_rule
from looksam.trainer.parallel import Layout, OnMesh, Parts, make_layout
from looksam.trainer.recipe import MODEL_SIZES, Recipe
from looksam.trainer.step import Metrics, TrainState, init_state, make_eval_step, make_train_step

MODEL_OPTIONS = (*MODEL_SIZES, "dropout", "stochastic_depth")


def make_model(recipe: Recipe, dataset: Dataset) -> Model:
    options = {name: getattr(recipe, name) for name in MODEL_OPTIONS if getattr(recipe, name) is not None}
    return build_model(
        recipe.model,
        image_shape=dataset.image_shape,
        num_classes=dataset.num_classes,
        dtype=jnp.dtype(recipe.dtype),
        **options,
    )


class Programs:
    """``init(seed)``, ``step(state, refresh, *arguments)`` and ``evaluate(params, stats, *batch)``, jitted.

    ``select`` turns the arguments of a step into (images, labels). The state is donated to the step, and comes back in
    the same places, so that a step compiles once for each value of ``refresh``.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        total_steps: int,
        layout: Layout,
        select: Callable[..., tuple[jax.Array, jax.Array]],
    ) -> None:
        self.model = model = make_model(recipe, dataset)
        tx = make_optimizer(recipe, total_steps)
        self.rule: Rule | None = make_rule(recipe)
        train_step = make_train_step(recipe, dataset, model, self.rule, tx, layout)

        def init(seed: Any) -> TrainState:
            return init_state(jax.random.key(seed), model, self.rule, tx)

        def step(state: TrainState, refresh: bool | None, *arguments: jax.Array) -> tuple[TrainState, Metrics]:
            return train_step(state, *select(*arguments), refresh)

        self.like = jax.eval_shape(init, 0)
        self.shardings: TrainState = layout.place(self.like)
        self.init = jax.jit(init, out_shardings=self.shardings)
        self.step = jax.jit(step, static_argnums=1, donate_argnums=0, out_shardings=(self.shardings, layout.everywhere))
        self.evaluate = jax.jit(make_eval_step(dataset, model, layout), out_shardings=layout.everywhere)

    def refreshes(self, step: int) -> bool | None:
        """Does this step take the second gradient? None for the base optimizer."""
        return self.rule.refreshes(step) if self.rule else None

    def restored(self) -> TrainState:
        """What a checkpoint shall be read as: shapes, dtypes and where each array goes."""
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), self.like, self.shardings
        )


class Training:
    """What a run needs: ``step`` takes one training step, ``evaluate`` reads the whole test set."""

    def __init__(self, recipe: Recipe, dataset: Dataset | None = None) -> None:
        self.recipe = recipe
        self.layout = make_layout(recipe.mesh_sizes())
        Parts.of(recipe, self.layout.devices)  # before the data is read
        self.dataset = load(recipe) if dataset is None else dataset
        self.feed: Feed = make_feed(self.dataset, recipe, self.layout)
        self.total_steps = self.feed.pace.steps(recipe.epochs)
        self.programs = Programs(recipe, self.dataset, self.total_steps, self.layout, self.feed.select)

    def init(self) -> TrainState:
        return self.programs.init(self.recipe.seed)

    def step(self, state: TrainState, i: int) -> tuple[TrainState, Metrics]:
        """Step i of the run. The host knows i, so each of the two programs holds only the gradients it needs."""
        return self.programs.step(state, self.programs.refreshes(i), *self.feed.arguments(i))

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Mean loss and accuracy in percent over the test set, each image counted once."""
        batches = make_eval_batches(self.dataset, self.recipe, self.layout)
        sums = [self.programs.evaluate(state.params, state.stats, *batch) for batch in batches]
        loss, hits, images = (sum(float(part[name]) for part in sums) for name in ("loss", "hits", "images"))
        return {"loss": loss / images, "accuracy": 100 * hits / images}


# training images, classes, side and channels of the sets whose size is known without them
KNOWN = {"digits": (600, 10, 8, 1), "cifar100": (50_000, 100, 32, 3), "imagenet": (1_281_167, 1000, 224, 3)}

# For programs that are looked at and not run: the quickest machine code to make.
FAST_COMPILE: dict[str, str | bool] = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}


def training_images(recipe: Recipe) -> int:
    """How many images an epoch of the recipe has, from what is known of its data set."""
    count, classes, *_ = _known(recipe)
    count = count * (recipe.classes or classes) // classes
    held_out = round(count * recipe.validation) if recipe.validation else 0
    return min(count - held_out, recipe.train_limit or count)


def total_steps(recipe: Recipe) -> int:
    return Pace.of(training_images(recipe), recipe).steps(recipe.epochs)


def trace_step(recipe: Recipe, layout: Layout, refresh: bool | None) -> jax.stages.Traced:
    """One of the two programs of a step: with the second gradient, or without (None for the base optimizer)."""
    programs = Programs(recipe, _shape_of_data(recipe), total_steps(recipe), layout, lambda *batch: batch)
    return programs.step.trace(programs.restored(), refresh, *_batch(recipe, layout))


def compile_step(recipe: Recipe, layout: Layout, refresh: bool | None) -> jax.stages.Compiled:
    """The same program, compiled."""
    return trace_step(recipe, layout, refresh).lower().compile(compiler_options=FAST_COMPILE)


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
