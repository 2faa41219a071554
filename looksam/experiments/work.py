"""What one process does: train the lanes of a recipe and say what came out, lane by lane."""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from looksam.experiments.compare.sweep import LANE_SETTINGS, Sweep, curve_epochs
from looksam.experiments.store import Record
from looksam.experiments.task import Kind, Task
from looksam.trainer.batches import prepared, read
from looksam.trainer.data import Dataset, Images
from looksam.trainer.recipe import Recipe

CURVE_POINTS = 10
LANES = 100  # at most, of an MLP: a vmap over them is faster on a CPU; other models train one lane at a time
DIGITS = 5  # significant ones of what is stored


def program(task: Task) -> tuple[Kind, Recipe]:
    """Tasks with the same one share their compiled programs."""
    return task.kind, task.recipe.replace(**{name: _DEFAULTS[name] for name in LANE_SETTINGS})


_DEFAULTS = Recipe().to_dict()


def records(tasks: Sequence[Task]) -> Iterator[list[tuple[Task, Record]]]:
    """Some tasks of one program, done; a list as soon as it is there."""
    kind, recipe = program(tasks[0])
    if kind == "drift":
        from looksam.experiments.drifting import drift_records

        yield from drift_records(recipe, tasks)
        return
    validation, test = data_of(recipe)
    sweep = Sweep(recipe, validation)
    together = LANES if recipe.model == "mlp" else 1
    for first in range(0, len(tasks), together):
        part = tasks[first : first + together]
        found = _train(sweep.start([task.recipe for task in part]), test if kind == "train" else None)
        yield list(zip(part, found, strict=True))


@functools.lru_cache(maxsize=1)
def _read(dataset: str, data_dir: str | None, download: bool) -> Dataset:
    """Decoding takes longer than some runs."""
    return read(Recipe(dataset=dataset, data_dir=data_dir, download=download))


def data_of(recipe: Recipe) -> tuple[Dataset, Images]:
    """The data with the held-out images in the place of the test set, and the test set itself."""
    whole = _read(recipe.dataset, recipe.data_dir, recipe.download)
    validation, tested = (prepared(r, whole) for r in (recipe, recipe.replace(validation=None)))
    if not isinstance(tested.test, Images):
        raise ValueError(f"{recipe.dataset} is streamed, and desk experiments need a set in memory.")
    return validation, tested.test


def _train(sweep: Sweep, test: Images | None) -> list[Record]:
    began, curve, losses = time.perf_counter(), [], []
    epochs = curve_epochs(sweep.recipe.epochs, CURVE_POINTS)
    for epoch in range(sweep.recipe.epochs):
        loss = sweep.run_epoch(epoch)
        if epoch + 1 in epochs:
            curve.append(sweep.accuracy())
            losses.append(loss)
    found: dict[str, Any] = {"validation_accuracy": np.stack(curve, 1), "train_loss": np.stack(losses, 1)}
    if test is not None:
        found |= {"test_accuracy": sweep.accuracy(test)} | _at_the_end(sweep, test)
    found["seconds"] = np.full(len(loss), (time.perf_counter() - began) / len(loss))
    return [{name: plain(values[i]) for name, values in found.items()} for i in range(len(loss))]


def _at_the_end(sweep: Sweep, test: Images) -> dict[str, np.ndarray]:
    """Sharpness and loss without augmentation on the first images of each set, and the norm of the weights."""
    train_loss, train_rise = sweep.loss_and_rise(sweep.train)
    _, test_rise = sweep.loss_and_rise(test)
    squares = [np.sum(np.square(np.asarray(x, np.float64)), axis=tuple(range(1, x.ndim))) for x in _leaves(sweep)]
    return {
        "train_loss_at_end": train_loss,
        "sharpness_train": train_rise,
        "sharpness_test": test_rise,
        "weight_norm": np.sqrt(np.sum(squares, axis=0)),
        "parameters": np.full(len(train_loss), sum(x[0].size for x in _leaves(sweep))),
    }


def _leaves(sweep: Sweep) -> list[Any]:
    return jax.tree.leaves(sweep.state.params)


def plain(value: Any) -> Any:
    """For JSON: floats of a few digits, None for what is not finite."""
    if np.ndim(value):
        return [plain(part) for part in value]
    return float(f"{float(value):.{DIGITS}g}") if math.isfinite(value) else None


def with_data_dir(task: Task, data_dir: str | None, download: bool) -> Task:
    return dataclasses.replace(task, recipe=task.recipe.replace(data_dir=data_dir, download=download))
