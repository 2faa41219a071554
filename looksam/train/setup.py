"""A recipe made real: data, model, rule, optimizer, and the compiled programs."""

import functools

import jax
import jax.numpy as jnp

from looksam.data import Dataset
from looksam.models import Model, build_model
from looksam.rules import Rule
from looksam.train.feed import Feed, load, make_eval_batches, make_feed
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


class Training:
    """What a run needs: ``step`` takes one training step, ``evaluate`` reads the whole test set."""

    def __init__(self, recipe: Recipe, dataset: Dataset | None = None) -> None:
        self.recipe = recipe
        self.dataset = load(recipe) if dataset is None else dataset
        self.feed: Feed = make_feed(self.dataset, recipe)
        self.total_steps = recipe.epochs * self.feed.steps_per_epoch
        self.model = make_model(recipe, self.dataset)
        self.rule: Rule | None = make_rule(recipe)
        self.tx = make_optimizer(recipe, self.total_steps)
        train_step = make_train_step(recipe, self.dataset, self.model, self.rule, self.tx)

        @functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
        def step(state: TrainState, refresh: bool | None, *arguments: jax.Array) -> tuple[TrainState, Metrics]:
            return train_step(state, *self.feed.select(*arguments), refresh)

        self._step = step
        self._eval_step = jax.jit(make_eval_step(self.dataset, self.model))

    def init(self) -> TrainState:
        def make(seed: jax.Array) -> TrainState:
            return init_state(jax.random.key(seed), self.model, self.rule, self.tx)

        return jax.jit(make)(self.recipe.seed)

    def step(self, state: TrainState, i: int) -> tuple[TrainState, Metrics]:
        """Step i of the run. The host knows i, so each of the two programs holds only the gradients it needs."""
        refresh = self.rule.refreshes(i) if self.rule else None
        return self._step(state, refresh, *self.feed.arguments(i))

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Mean loss and accuracy in percent over the test set, each image counted once."""
        sums = [
            self._eval_step(state.params, state.stats, *batch) for batch in make_eval_batches(self.dataset, self.recipe)
        ]
        loss, hits, images = (sum(float(part[name]) for part in sums) for name in ("loss", "hits", "images"))
        return {"loss": loss / images, "accuracy": 100 * hits / images}
