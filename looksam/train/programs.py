"""The compiled programs of a recipe: the first state, a step with or without the second gradient, and evaluation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from looksam.data import Dataset
from looksam.models import Model, build_model
from looksam.rules import Rule
from looksam.train.layout import Layout
from looksam.train.optimizers import make_optimizer, make_rule
from looksam.train.recipe import MODEL_SIZES, Recipe
from looksam.train.state import TrainState, init_state
from looksam.train.step import Metrics, make_eval_step, make_train_step

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
