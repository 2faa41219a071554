"""What is measured on a run: the record of every run of one program, as plain numbers.

``train`` and ``tune`` go through the vmapped runner. ``drift`` is a run of SAM in which g, g_s, g_h and g_v of every
step are compared with those of five steps before.
"""

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.analysis import components, make_drift
from looksam.experiments.engine.runner import VMAPPED_SETTINGS, Curves, Runner, curve_epochs
from looksam.experiments.engine.runs import Kind, Record, Run, plain
from looksam.trainer.batches import prepared, read
from looksam.trainer.data import Dataset, Images, epoch_batches
from looksam.trainer.models import Model
from looksam.trainer.optimizers import make_optimizer
from looksam.trainer.recipe import Recipe
from looksam.trainer.step import StepContext, make_loss
from looksam.trainer.training import make_model

VMAPPED_MLPS = 100  # runs at most: a vmap over small MLPs is faster on a CPU; other models train one run at a time
COMPILED = 16  # programs that a process keeps, as many as one experiment has rows
LAG = 5  # steps between the vectors that drift compares
PARTS = ("g", "g_s", "g_h", "g_v")
MEASURES = ("norm", "absolute", "relative", "cosine")  # of each part's change
_DEFAULTS = vars(Recipe())


def program(run: Run) -> tuple[Kind, Recipe]:
    """What a run compiles; runs with the same program train together."""
    return run.kind, run.recipe.replace(**{name: _DEFAULTS[name] for name in VMAPPED_SETTINGS})


def records(runs: Sequence[Run]) -> Iterator[list[tuple[Run, Record]]]:
    """Trains runs of one program; gives a list of runs with their records as soon as they are finished."""
    kind, recipe = program(runs[0])
    if kind == "drift":
        yield from _drift_records(recipe, runs)
        return
    began, first = time.perf_counter(), 0
    runner, test_set = _runner(recipe)
    test = test_set if kind == "train" else None
    together = VMAPPED_MLPS if recipe.model == "mlp" else 1
    for curves in runner.trained([run.recipe for run in runs], together, other=test):
        part = runs[first : first + together]
        results = _measured(runner, curves, test)
        results["seconds"] = np.full(len(part), (time.perf_counter() - began) / len(part))
        yield [(run, {name: plain(values[i]) for name, values in results.items()}) for i, run in enumerate(part)]
        began, first = time.perf_counter(), first + together


@functools.lru_cache(maxsize=COMPILED)
def _runner(recipe: Recipe) -> tuple[Runner, Images]:
    """The runner of a program, whose dataset has the held-out images for a test set, and the test set itself."""
    validation, test = held_out_and_test(recipe)
    return Runner(recipe, validation), test


@functools.lru_cache(maxsize=1)
def _read(dataset: str, data_dir: str | None, download: bool) -> Dataset:
    """Reads a dataset once: decoding takes longer than some runs."""
    return read(Recipe(dataset=dataset, data_dir=data_dir, download=download))


def held_out_and_test(recipe: Recipe) -> tuple[Dataset, Images]:
    """The recipe's data with the held-out images in place of the test set, and the test set itself."""
    whole = _read(recipe.dataset, recipe.data_dir, recipe.download)
    validation, tested = (prepared(r, whole) for r in (recipe, recipe.replace(validation=None)))
    if not isinstance(tested.test, Images):
        raise ValueError(f"{recipe.dataset} is streamed, and small-scale experiments need a set in memory.")
    return validation.with_validation_as_test(), tested.test


def _measured(runner: Runner, curves: Curves, test: Images | None) -> dict[str, np.ndarray]:
    """The learning curves; with a test set also its accuracy, and what is measured at the end of training."""
    results = {"validation_accuracy": curves.accuracy.T, "train_loss": curves.loss.T}
    if test is None or curves.at_best is None:
        return results
    train_loss, sharpness_train = runner.loss_and_sharpness(runner.train)  # without augmentation
    leaves = jax.tree.leaves(runner.state.params)
    squares = [np.sum(np.square(np.asarray(x, np.float64)), axis=tuple(range(1, x.ndim))) for x in leaves]
    return results | {
        "test_accuracy": runner.accuracy(test),
        "test_accuracy_at_best": curves.at_best,
        "train_accuracy": runner.accuracy(runner.train),  # on the labels as they are, random ones too
        "train_loss_at_end": train_loss,
        "sharpness_train": sharpness_train,
        "sharpness_test": runner.loss_and_sharpness(test)[1],
        "weight_norm": np.sqrt(np.sum(squares, axis=0)),
        "parameters": np.full(len(train_loss), sum(x[0].size for x in leaves)),
    }


# --- drift ------------------------------------------------------------------------------------------------------


def _drift_records(recipe: Recipe, runs: Sequence[Run]) -> Iterator[list[tuple[Run, Record]]]:
    """Means over each tenth of training of the norm, the absolute and relative drift, and the cosine."""
    dataset, _ = held_out_and_test(recipe)
    train = dataset.train
    if not isinstance(train, Images):
        raise ValueError(f"{recipe.dataset} is streamed, and drift is measured on a set in memory.")
    model = make_model(recipe, dataset)
    images, labels = jnp.asarray(train.images), jnp.asarray(train.labels)
    per_epoch = len(train) // recipe.batch_size
    step = _make_drift_step(recipe, dataset, model, recipe.epochs * per_epoch, images, labels)
    for run in runs:
        began, seed = time.perf_counter(), run.recipe.seed
        drift, (params, stats) = make_drift(LAG), model.init(jax.random.key(seed))
        state, opt_state, steps = drift.init(params), None, []
        for epoch in range(recipe.epochs):
            for batch in epoch_batches(len(train), recipe.batch_size, seed, epoch):
                hyperparams = run.recipe.rho, run.recipe.learning_rate, run.recipe.weight_decay
                params, opt_state, parts = step(params, opt_state, stats, batch, *hyperparams)
                state, changes = drift.update(state, parts)
                steps.append(changes)
        record = _means_over_tenths(jax.device_get(steps), recipe.epochs, per_epoch)
        yield [(run, record | {"seconds": plain(time.perf_counter() - began)})]


def _make_drift_step(recipe: Recipe, dataset: Any, model: Model, total_steps: int, images: Any, labels: Any) -> Any:
    """One step of SAM with the recipe's optimizer, which also returns the parts of its gradient."""
    loss = make_loss(recipe, dataset, model)
    key = jax.random.key(0)  # for dropout and Mixup, which small-scale recipes do not use
    keys = jax.random.split(key, recipe.batch_size)

    @jax.jit
    def step(params: Any, opt_state: Any, stats: Any, rows: Any, rho: Any, rate: Any, decay: Any) -> tuple[Any, ...]:
        tx = make_optimizer(recipe, total_steps, rate, decay)
        opt_state = tx.init(params) if opt_state is None else opt_state

        def batch_loss(w: Any) -> jax.Array:
            return loss(w, (), StepContext(stats, key, key), images[rows], labels[rows], keys)[0]

        parts = components(batch_loss, params, rho, recipe.p)
        updates, opt_state = tx.update(parts.g_s, opt_state, params)
        return jax.tree.map(jnp.add, params, updates), opt_state, parts

    return step


def _means_over_tenths(steps: Sequence[Any], epochs: int, per_epoch: int) -> Record:
    """{"g_v": {"norm": [...], ...}, ...}; the first five steps, which have no drift, are left out."""
    ends = [epoch * per_epoch for epoch in curve_epochs(epochs)]
    starts = [LAG, *ends[:-1]]

    def means(part: str, measure: str) -> list[Any]:
        values = [getattr(getattr(changes, part), measure) for changes in steps]
        return [plain(np.mean(values[first:end])) for first, end in zip(starts, ends, strict=True)]

    return {part: {measure: means(part, measure) for measure in MEASURES} for part in PARTS}
