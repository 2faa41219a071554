"""The runner: many runs of one program, vmapped over seeds and hyper-parameters, or one by one.

Runs of one recipe may differ in their seed, learning rate, weight decay, ρ and α; all else is compiled in. ``Runner``
holds the programs and the state of the runs that train together.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from looksam.analysis import one_step_sharpness
from looksam.trainer.batches import make_eval_batches
from looksam.trainer.data import Dataset, Images, epoch_batches
from looksam.trainer.optimizers import make_optimizer, make_rule
from looksam.trainer.parameter_paths import check_paths
from looksam.trainer.recipe import Recipe
from looksam.trainer.step import TrainState, init_state, make_eval_loss, make_eval_step, make_train_step, refresh_of
from looksam.trainer.training import make_model

SHARPNESS_RHO = 0.05  # one radius for all methods, so that the numbers compare
SHARPNESS_IMAGES = 1200  # the first images of a set; all of digits
VMAPPED_SETTINGS = (
    "seed",
    "learning_rate",
    "weight_decay",
    "rho",
    "alpha",
)  # what may differ between the runs of one program
CURVE_POINTS = 10  # of a learning curve


AfterEpoch = Callable[[int], None]  # called with the epoch that has ended, from 0


def _ignore(epoch: int) -> None:
    """Does nothing, in place of an ``AfterEpoch``."""


class Hyperparams(NamedTuple):
    """The hyper-parameters that are arguments of the program: arrays with one entry per run."""

    learning_rate: jax.Array
    weight_decay: jax.Array
    rho: jax.Array
    alpha: jax.Array


class Curves(NamedTuple):
    """Learning curves, arrays of shape (points, runs)."""

    accuracy: np.ndarray  # on the dataset's test split, in percent
    loss: np.ndarray  # mean over the training steps of the epoch
    at_best: np.ndarray | None = None  # of shape (runs,): on other images, where ``accuracy`` is highest


def device_arrays(dataset: Dataset) -> tuple[jax.Array, jax.Array]:
    """The images and labels of the training set on the device, to be shared by several runners."""
    train, _ = _in_memory(dataset)
    return jax.device_put((train.images, train.labels))


class Runner:
    """The compiled programs of ``recipe``, and the runs that they train together.

    If the recipe holds images out, they take the place of the test set, which is not read.
    ``start`` begins one run per recipe it is given; results have one entry per run. Runners of other methods on the
    same dataset may share its ``arrays``.
    """

    def __init__(self, recipe: Recipe, dataset: Dataset, arrays: tuple[jax.Array, jax.Array] | None = None) -> None:
        if recipe.across_epochs:
            raise ValueError("comparisons draw batches within epochs; use `looksam train` for across_epochs.")
        if recipe.init_from:
            raise ValueError("comparisons start from random weights; use `looksam train` for init_from.")
        dataset = dataset.with_validation_as_test() if recipe.validation else dataset  # tuning never sees the test set
        self.recipe, self.dataset = recipe, dataset
        self.train, self.test = _in_memory(dataset)
        self._data = arrays or device_arrays(dataset)
        self.steps_per_epoch = len(dataset.train) // recipe.batch_size
        self.total_steps = recipe.epochs * self.steps_per_epoch
        self.model, self.rule = make_model(recipe, dataset), make_rule(recipe, self.total_steps)
        check_paths(recipe, self.model)
        self._compile()

    def start(self, recipes: Sequence[Recipe]) -> "Runner":
        """Begins one run per recipe; they may differ from the runner's in VMAPPED_SETTINGS only."""
        for recipe in recipes:
            if recipe.replace(**{name: getattr(self.recipe, name) for name in VMAPPED_SETTINGS}) != self.recipe:
                raise ValueError(f"vmapped runs may only differ in {', '.join(VMAPPED_SETTINGS)}, not as {recipe}.")
        self._seeds = [recipe.seed for recipe in recipes]
        values = [(r.peak_learning_rate(), r.weight_decay, r.rho, r.alpha) for r in recipes]
        self._hyperparams = Hyperparams(*jnp.asarray(values, jnp.float32).T)
        self._epoch, self._order = -1, np.zeros((0, 0, 0), np.int32)
        self.state: TrainState = self._init(jnp.asarray(self._seeds, jnp.uint32))
        return self

    def trained(
        self,
        recipes: Sequence[Recipe],
        together: int,
        points: int = CURVE_POINTS,
        other: Images | None = None,
        after_epoch: AfterEpoch = _ignore,
    ) -> Iterator[Curves]:
        """Trains runs to their end, ``together`` at a time. After each group its state can be read here."""
        for first in range(0, len(recipes), together):
            yield self.start(recipes[first : first + together]).run(points, other, after_epoch)

    def run(self, points: int, other: Images | None = None, after_epoch: AfterEpoch = _ignore) -> Curves:
        """Trains to the end, and evaluates at ``points`` epochs on the way.

        ``other`` images are evaluated only where the accuracy is the best so far: they select nothing.
        """
        accuracy: list[np.ndarray] = []
        losses, at_best = [], None
        for epoch in range(self.recipe.epochs):
            loss = self.run_epoch(epoch)
            after_epoch(epoch)
            if epoch + 1 in curve_epochs(self.recipe.epochs, points):
                accuracy.append(self.accuracy())
                losses.append(loss)
                better = accuracy[-1] > np.max(accuracy[:-1], axis=0, initial=-1.0)
                if other is not None and better.any():
                    found = self.accuracy(other)
                    at_best = found if at_best is None else np.where(better, found, at_best)
        return Curves(np.stack(accuracy), np.stack(losses), at_best)

    def run_epoch(self, epoch: int) -> np.ndarray:
        """One pass over the training set; returns the mean training loss of each run."""
        first = epoch * self.steps_per_epoch
        losses = [self.step(i) for i in range(first, first + self.steps_per_epoch)]
        return np.mean(jax.device_get(losses), axis=0)

    def step(self, i: int) -> jax.Array:
        """Step i of every run; returns the training losses."""
        return self.take(i, refresh_of(self.rule, i))

    def take(self, i: int, refresh: bool | None) -> jax.Array:
        """Takes a step on the batch of step i, with the second gradient or without; None where no rule acts."""
        epoch, position = divmod(i, self.steps_per_epoch)
        if epoch != self._epoch:
            size, batch = len(self.dataset.train), self.recipe.batch_size
            orders = {seed: epoch_batches(size, batch, seed, epoch) for seed in set(self._seeds)}
            self._epoch, self._order = epoch, np.stack([orders[seed] for seed in self._seeds], axis=1)
        self.state, losses = self._step(refresh, self.state, self._data, self._order[position], self._hyperparams)
        return losses

    def accuracy(self, images: Images | None = None) -> np.ndarray:
        """The accuracy of each run in percent, on ``images`` or on the test set."""
        dataset = self.dataset if images is None else dataclasses.replace(self.dataset, test=images)
        batches = make_eval_batches(dataset, self.recipe)
        hits = np.sum([np.asarray(self._hits(self.state, *batch)) for batch in batches], axis=0)
        return 100 * hits / len(dataset.test)

    def loss_and_sharpness(self, images: Images) -> tuple[np.ndarray, np.ndarray]:
        """The loss on the first of some images, and by how much one ascent step of length 0.05 raises it."""
        few = images.take(np.arange(min(SHARPNESS_IMAGES, len(images))))
        loss, sharpness = self._loss_and_sharpness(self.state, few.images, few.labels)
        return np.asarray(loss), np.asarray(sharpness)

    def _compile(self) -> None:
        @jax.jit
        @over_runs
        def init(seed: jax.Array) -> TrainState:
            tx = make_optimizer(self.recipe, self.total_steps, weight_decay=0.0)  # its state is that of any value
            return init_state(jax.random.key(seed), self.model, self.rule, tx, self.recipe.freeze)

        @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
        def step(refresh: bool | None, state: TrainState, data: Any, batch: Any, hyperparams: Any) -> tuple[Any, Any]:
            def one_run(state: TrainState, batch: jax.Array, values: Hyperparams) -> tuple[TrainState, jax.Array]:
                rule = make_rule(self.recipe, self.total_steps, values.rho, values.alpha)
                tx = make_optimizer(self.recipe, self.total_steps, values.learning_rate, values.weight_decay)
                train_step = make_train_step(self.recipe, self.dataset, self.model, rule, tx)
                state, metrics = train_step(state, data[0][batch], data[1][batch], refresh)
                return state, metrics["loss"]

            return over_runs(one_run)(state, batch, hyperparams)

        eval_step, eval_loss = make_eval_step(self.dataset, self.model), make_eval_loss(self.dataset, self.model)

        @jax.jit
        def hits(state: TrainState, *batch: jax.Array) -> jax.Array:
            return over_runs(lambda s: eval_step(s.params, s.stats, *batch)["hits"])(state)

        @jax.jit
        def loss_and_sharpness(state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
            def one_run(state: TrainState) -> tuple[jax.Array, jax.Array]:
                loss = lambda params: eval_loss(params, state.stats, images, labels)
                return loss(state.params), one_step_sharpness(loss, state.params, SHARPNESS_RHO)

            return over_runs(one_run)(state)

        self._init, self._step, self._hits, self._loss_and_sharpness = init, step, hits, loss_and_sharpness


def over_runs(function: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.vmap`` over the runs; a single run goes without, since XLA's matrix products are faster then."""

    def mapped(*arguments: Any) -> Any:
        if jax.tree.leaves(arguments)[0].shape[0] > 1:
            return jax.vmap(function)(*arguments)
        results = function(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], results)

    return mapped


def _in_memory(dataset: Dataset) -> tuple[Images, Images]:
    if not isinstance(dataset.train, Images) or not isinstance(dataset.test, Images):
        raise ValueError(f"{dataset.name} is streamed, and comparisons need a set in memory; use `looksam train`.")
    return dataset.train, dataset.test


def curve_epochs(epochs: int, points: int = CURVE_POINTS) -> list[int]:
    """The epochs at which a learning curve is evaluated: evenly spread, the last one included."""
    return sorted({round(epochs * (i + 1) / points) for i in range(points)} - {0})
