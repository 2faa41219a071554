"""Many runs of one method in one program: every seed, and every setting of ρ and α, is a lane of a vmap."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.analysis import one_step_sharpness
from looksam.data import Dataset, Images, epoch_batches
from looksam.data.augment import normalize
from looksam.train.evaluation import make_eval_batches
from looksam.train.optimizers import make_optimizer, make_rule
from looksam.train.programs import make_model
from looksam.train.recipe import Recipe
from looksam.train.state import TrainState, init_state
from looksam.train.step import make_eval_step, make_train_step, moments

SHARPNESS_RHO = 0.05  # one radius for all methods, so that the numbers compare
SHARPNESS_IMAGES = 1200  # the first ones of a set, all of digits


class Sweep:
    """``recipe`` trained once for each seed and each setting; results have the shape (settings, seeds)."""

    def __init__(self, recipe: Recipe, dataset: Dataset, seeds: int, settings: list[dict[str, Any]]) -> None:
        if not isinstance(dataset.train, Images) or not isinstance(dataset.test, Images):
            raise ValueError(f"{recipe.dataset} is streamed, and compare needs a set in memory; use `looksam train`.")
        if recipe.across_epochs:
            raise ValueError("compare draws batches within epochs; use `looksam train` for across_epochs.")
        self.recipe, self.shape = recipe, (len(settings), seeds)
        self.dataset = dataset
        self.train, self.test = jax.device_put(_arrays(dataset.train)), _arrays(dataset.test)
        self.steps_per_epoch = len(dataset.train) // recipe.batch_size
        self.total_steps = recipe.epochs * self.steps_per_epoch
        self.model, self.tx = make_model(recipe, dataset), make_optimizer(recipe, self.total_steps)
        self.rule = make_rule(recipe)
        self._seeds = [recipe.seed + i for i in range(seeds)] * len(settings)
        self._rho = _lanes([setting.get("rho", recipe.rho) for setting in settings], seeds)
        self._alpha = _lanes([setting.get("alpha", recipe.alpha) for setting in settings], seeds)
        self._epoch, self._order = -1, np.zeros((0, 0, 0), np.int32)
        self._compile()
        self.state: TrainState = self._init(jnp.asarray(self._seeds, jnp.uint32))

    def _compile(self) -> None:
        @jax.jit
        @jax.vmap
        def init(seed: jax.Array) -> TrainState:
            return init_state(jax.random.key(seed), self.model, self.rule, self.tx)

        @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
        def step(refresh: bool | None, state: TrainState, data: Any, batch: Any, rho: Any, alpha: Any) -> TrainState:
            def lane(state: TrainState, batch: jax.Array, rho: jax.Array, alpha: jax.Array) -> TrainState:
                rule = make_rule(self.recipe, rho, alpha)
                train_step = make_train_step(self.recipe, self.dataset, self.model, rule, self.tx)
                return train_step(state, data[0][batch], data[1][batch], refresh)[0]

            return jax.vmap(lane)(state, batch, rho, alpha)

        eval_step = make_eval_step(self.dataset, self.model)

        @jax.jit
        def hits(state: TrainState, *batch: jax.Array) -> jax.Array:
            return jax.vmap(lambda s: eval_step(s.params, s.stats, *batch)["hits"])(state)

        @jax.jit
        def sharpness(state: TrainState, data: Any) -> jax.Array:
            inputs, labels = normalize(data[0], *moments(self.dataset)), data[1]

            def lane(state: TrainState) -> jax.Array:
                def loss(params: Any) -> jax.Array:
                    logits, _ = self.model.apply(params, state.stats, inputs, train=False)
                    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

                return one_step_sharpness(loss, state.params, SHARPNESS_RHO)

            return jax.vmap(lane)(state)

        self._init, self._step, self._hits, self._sharpness = init, step, hits, sharpness

    def step(self, i: int) -> None:
        epoch, position = divmod(i, self.steps_per_epoch)
        if epoch != self._epoch:
            size, batch = len(self.dataset.train), self.recipe.batch_size
            orders = {seed: epoch_batches(size, batch, seed, epoch) for seed in set(self._seeds)}
            self._epoch, self._order = epoch, np.stack([orders[seed] for seed in self._seeds], axis=1)
        refresh = self.rule.refreshes(i) if self.rule else None
        self.state = self._step(refresh, self.state, self.train, self._order[position], self._rho, self._alpha)

    def run(self, points: int) -> np.ndarray:
        """Train to the end; test accuracy at ``points`` epochs on the way, shape (points, settings, seeds)."""
        curve = []
        for epoch in range(self.recipe.epochs):
            for position in range(self.steps_per_epoch):
                self.step(epoch * self.steps_per_epoch + position)
            if epoch + 1 in curve_epochs(self.recipe.epochs, points):
                curve.append(self.accuracy())
        return np.stack(curve)

    def accuracy(self) -> np.ndarray:
        """In percent of the test set, shape (settings, seeds)."""
        batches = make_eval_batches(self.dataset, self.recipe)
        hits = np.sum([np.asarray(self._hits(self.state, *batch)) for batch in batches], axis=0)
        return (100 * hits / len(self.dataset.test)).reshape(self.shape)

    def sharpness(self) -> tuple[np.ndarray, np.ndarray]:
        """How much the training and the test loss rise one step of 0.05 uphill, each of shape (settings, seeds)."""
        few = [tuple(part[:SHARPNESS_IMAGES] for part in data) for data in (self.train, self.test)]
        train, test = (np.asarray(self._sharpness(self.state, data)).reshape(self.shape) for data in few)
        return train, test


def curve_epochs(epochs: int, points: int) -> list[int]:
    """Epochs at which accuracy is read: evenly spread, the last one included."""
    return sorted({round(epochs * (i + 1) / points) for i in range(points)} - {0})


def _lanes(values: list[float], seeds: int) -> jax.Array:
    return jnp.repeat(jnp.asarray(values, jnp.float32), seeds)


def _arrays(images: Images) -> tuple[np.ndarray, np.ndarray]:
    return images.images, images.labels
