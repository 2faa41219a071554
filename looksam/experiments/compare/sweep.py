"""Many runs of one method in one program: every seed and setting (learning rate, ρ, α) is a lane of a vmap."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from looksam.analysis import one_step_sharpness
from looksam.trainer.batches import make_eval_batches
from looksam.trainer.data import Dataset, Images, epoch_batches
from looksam.trainer.data.transforms.augment import normalize
from looksam.trainer.optimizers import make_optimizer, make_rule
from looksam.trainer.recipe import Recipe
from looksam.trainer.step import TrainState, init_state, make_eval_step, make_train_step, moments
from looksam.trainer.training import make_model

SHARPNESS_RHO = 0.05  # one radius for all methods, so that the numbers compare
SHARPNESS_IMAGES = 1200  # the first ones of a set, all of digits
LANE_SETTINGS = ("seed", "learning_rate", "rho", "alpha")  # what may differ from lane to lane


class Dials(NamedTuple):
    """What a lane sets, an array of one entry a lane."""

    rate: jax.Array
    rho: jax.Array
    alpha: jax.Array


class Sweep:
    """The programs of ``recipe``; ``start`` makes one lane of each recipe given, and results have one entry a lane."""

    def __init__(self, recipe: Recipe, dataset: Dataset) -> None:
        if not isinstance(dataset.train, Images) or not isinstance(dataset.test, Images):
            raise ValueError(f"{recipe.dataset} is streamed, and compare needs a set in memory; use `looksam train`.")
        if recipe.across_epochs:
            raise ValueError("compare draws batches within epochs; use `looksam train` for across_epochs.")
        self.recipe, self.dataset, self.train, self.test = recipe, dataset, dataset.train, dataset.test
        self._data = jax.device_put((dataset.train.images, dataset.train.labels))
        self.steps_per_epoch = len(dataset.train) // recipe.batch_size
        self.total_steps = recipe.epochs * self.steps_per_epoch
        self.model, self.rule = make_model(recipe, dataset), make_rule(recipe)
        self._compile()

    def start(self, lanes: Sequence[Recipe]) -> "Sweep":
        """Fresh runs, one for each recipe; they differ from the sweep's in LANE_SETTINGS at most."""
        for lane in lanes:
            if lane.replace(**{name: getattr(self.recipe, name) for name in LANE_SETTINGS}) != self.recipe:
                raise ValueError(f"a lane may set {', '.join(LANE_SETTINGS)}, and {lane} differs in more.")
        self._seeds = [lane.seed for lane in lanes]
        values = [(lane.peak_learning_rate(), lane.rho, lane.alpha) for lane in lanes]
        self._dials = Dials(*jnp.asarray(values, jnp.float32).T)
        self._epoch, self._order = -1, np.zeros((0, 0, 0), np.int32)
        self.state: TrainState = self._init(jnp.asarray(self._seeds, jnp.uint32))
        return self

    def _compile(self) -> None:
        def optimizer(dials: Dials) -> Any:
            return make_optimizer(self.recipe, self.total_steps, dials.rate)

        @jax.jit
        @jax.vmap
        def init(seed: jax.Array) -> TrainState:
            tx = make_optimizer(self.recipe, self.total_steps)
            return init_state(jax.random.key(seed), self.model, self.rule, tx)

        @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
        def step(refresh: bool | None, state: TrainState, data: Any, batch: Any, dials: Dials) -> tuple[Any, Any]:
            def lane(state: TrainState, batch: jax.Array, dials: Dials) -> tuple[TrainState, jax.Array]:
                rule = make_rule(self.recipe, dials.rho, dials.alpha)
                train_step = make_train_step(self.recipe, self.dataset, self.model, rule, optimizer(dials))
                state, metrics = train_step(state, data[0][batch], data[1][batch], refresh)
                return state, metrics["loss"]

            return jax.vmap(lane)(state, batch, dials)

        eval_step = make_eval_step(self.dataset, self.model)

        @jax.jit
        def hits(state: TrainState, *batch: jax.Array) -> jax.Array:
            return jax.vmap(lambda s: eval_step(s.params, s.stats, *batch)["hits"])(state)

        @jax.jit
        def loss_and_rise(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
            inputs = normalize(images, *moments(self.dataset))

            def lane(state: TrainState) -> tuple[jax.Array, jax.Array]:
                def loss(params: Any) -> jax.Array:
                    logits, _ = self.model.apply(params, state.stats, inputs, train=False)
                    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

                return loss(state.params), one_step_sharpness(loss, state.params, SHARPNESS_RHO)

            return jax.vmap(lane)(state)

        self._init, self._step, self._hits, self._loss_and_rise = init, step, hits, loss_and_rise

    def step(self, i: int) -> jax.Array:
        """Step i of every lane; the training losses."""
        epoch, position = divmod(i, self.steps_per_epoch)
        if epoch != self._epoch:
            size, batch = len(self.dataset.train), self.recipe.batch_size
            orders = {seed: epoch_batches(size, batch, seed, epoch) for seed in set(self._seeds)}
            self._epoch, self._order = epoch, np.stack([orders[seed] for seed in self._seeds], axis=1)
        refresh = self.rule.refreshes(i) if self.rule else None
        self.state, losses = self._step(refresh, self.state, self._data, self._order[position], self._dials)
        return losses

    def run_epoch(self, epoch: int) -> np.ndarray:
        """One pass over the training set; the mean training loss of each lane."""
        first = epoch * self.steps_per_epoch
        losses = [self.step(i) for i in range(first, first + self.steps_per_epoch)]
        return np.mean(jax.device_get(losses), axis=0)

    def run(self, points: int) -> np.ndarray:
        """Train to the end; test accuracy at ``points`` epochs on the way, shape (points, lanes)."""
        curve = []
        for epoch in range(self.recipe.epochs):
            self.run_epoch(epoch)
            if epoch + 1 in curve_epochs(self.recipe.epochs, points):
                curve.append(self.accuracy())
        return np.stack(curve)

    def accuracy(self, images: Images | None = None) -> np.ndarray:
        """In percent of ``images``, the test set if not given."""
        dataset = self.dataset if images is None else dataclasses.replace(self.dataset, test=images)
        batches = make_eval_batches(dataset, self.recipe)
        hits = np.sum([np.asarray(self._hits(self.state, *batch)) for batch in batches], axis=0)
        return 100 * hits / len(dataset.test)

    def loss_and_rise(self, images: Images) -> tuple[np.ndarray, np.ndarray]:
        """The loss on the first of some images, and how much it rises one step of 0.05 uphill."""
        few = images.take(np.arange(min(SHARPNESS_IMAGES, len(images))))
        loss, rise = self._loss_and_rise(self.state, few.images, few.labels)
        return np.asarray(loss), np.asarray(rise)


def curve_epochs(epochs: int, points: int) -> list[int]:
    """Epochs at which accuracy is read: evenly spread, the last one included."""
    return sorted({round(epochs * (i + 1) / points) for i in range(points)} - {0})
