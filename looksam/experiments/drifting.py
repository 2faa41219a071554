"""A SAM run in which g, g_s, g_h and g_v of every step are compared with those of five steps before."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.analysis import components, make_drift
from looksam.experiments.compare.sweep import curve_epochs
from looksam.experiments.store import Record
from looksam.experiments.task import Task
from looksam.experiments.work import CURVE_POINTS, data_of, plain
from looksam.trainer.data import Images, epoch_batches
from looksam.trainer.models import Model
from looksam.trainer.optimizers import make_optimizer
from looksam.trainer.recipe import Recipe
from looksam.trainer.step import StepContext, make_loss
from looksam.trainer.training import make_model

LAG = 5
NAMES = ("g", "g_s", "g_h", "g_v")


def drift_records(recipe: Recipe, tasks: Sequence[Task]) -> Iterator[list[tuple[Task, Record]]]:
    """Each of ten parts of training gives its means: the norm, the absolute and relative drift, and the cosine."""
    dataset, _ = data_of(recipe)
    train = dataset.train
    if not isinstance(train, Images):
        raise ValueError(f"{recipe.dataset} is streamed, and drift is measured on a set in memory.")
    model = make_model(recipe, dataset)
    images, labels = jnp.asarray(train.images), jnp.asarray(train.labels)
    per_epoch = len(train) // recipe.batch_size
    step = _make_step(recipe, dataset, model, recipe.epochs * per_epoch, images, labels)
    for task in tasks:
        began, seed = time.perf_counter(), task.recipe.seed
        drift, (params, stats) = make_drift(LAG), model.init(jax.random.key(seed))
        state, opt_state, rows = drift.init(params), None, []
        for epoch in range(recipe.epochs):
            for batch in epoch_batches(len(train), recipe.batch_size, seed, epoch):
                dials = task.recipe.rho, task.recipe.learning_rate
                params, opt_state, parts = step(params, opt_state, stats, batch, *dials)
                state, changes = drift.update(state, parts)
                rows.append(changes)
        record = _by_part(jax.device_get(rows), recipe.epochs, per_epoch)
        yield [(task, record | {"seconds": plain(time.perf_counter() - began)})]


def _make_step(recipe: Recipe, dataset: Any, model: Model, total_steps: int, images: Any, labels: Any) -> Any:
    """One step of SAM with the recipe's optimizer, and the parts of its gradient."""
    loss = make_loss(recipe, dataset, model)
    key = jax.random.key(0)  # of dropout and Mixup, which desk recipes do without
    keys = jax.random.split(key, recipe.batch_size)

    @jax.jit
    def step(params: Any, opt_state: Any, stats: Any, rows: Any, rho: Any, rate: Any) -> tuple[Any, Any, Any]:
        tx = make_optimizer(recipe, total_steps, rate)
        opt_state = tx.init(params) if opt_state is None else opt_state

        def of_batch(w: Any) -> jax.Array:
            return loss(w, (), StepContext(stats, key, key), images[rows], labels[rows], keys)[0]

        parts = components(of_batch, params, rho, recipe.p)
        updates, opt_state = tx.update(parts.g_s, opt_state, params)
        return jax.tree.map(jnp.add, params, updates), opt_state, parts

    return step


def _by_part(rows: Sequence[Any], epochs: int, per_epoch: int) -> Record:
    """{"g_v": {"norm": [...], "absolute": [...], ...}, ...}; the first five steps have no drift and are left out."""
    ends = [epoch * per_epoch for epoch in curve_epochs(epochs, CURVE_POINTS)]
    starts = [LAG, *ends[:-1]]
    record: Record = {}
    for name in NAMES:
        changes = [getattr(row, name) for row in rows]
        record[name] = {
            number: [
                plain(np.mean([getattr(c, number) for c in changes[a:b]])) for a, b in zip(starts, ends, strict=True)
            ]
            for number in ("norm", "absolute", "relative", "cosine")
        }
    return record
