"""Flatness of a trained model: ``looksam.analysis.measure`` at a checkpoint of a run."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.analysis import measure
from looksam.arguments import ArgumentError
from looksam.trainer.checkpoints import CheckpointChoice
from looksam.trainer.data import Encoded, Images, eval_batches
from looksam.trainer.loop import restored
from looksam.trainer.run_directory import read_recipe
from looksam.trainer.step import make_eval_loss
from looksam.trainer.training import Training

DEFAULT_IMAGES = 1000


def analyze_run(
    run_dir: str | pathlib.Path,
    *,
    images: int | None = None,
    rho: float | None = None,
    eigenvalues: int = 3,
    checkpoint: CheckpointChoice = "last",
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure how flat the loss is around a checkpoint of a run; the numbers, with None where one is not finite.

    Args:
      run_dir: the folder of the run, which may still be training.
      images: use the first so many training and test images; by default all, at most 1,000.
      rho: radius of the perturbation in the 2-norm; by default the recipe's.
      eigenvalues: number of the Hessian's largest eigenvalues.
      checkpoint: ``"last"``, ``"best"`` or a step.
      report: called with a line about what is being measured.
    """
    directory = pathlib.Path(run_dir)
    radius = read_recipe(directory).rho if rho is None else rho
    if not radius > 0:
        raise ArgumentError(f"the recipe's rho is {radius}, which leaves nothing to perturb; pass rho, e.g. 0.05")
    # in float32: a product with the Hessian is lost in bfloat16's rounding
    with restored(directory, checkpoint=checkpoint, dtype="float32") as (training, step, state):
        count = _count(images, len(training.dataset.train))
        train, test = (_first(part, count, training) for part in (training.dataset.train, training.dataset.test))
        report(f"step {step}: {len(train[1])} training and {len(test[1])} test images")
        eval_loss = make_eval_loss(training.dataset, training.programs.model)
        numbers = measure(
            lambda params, images, labels: eval_loss(params, state.stats, images, labels),
            state.params,
            train,
            test,
            rho=radius,
            key=jax.random.key(0),
            eigenvalues=eigenvalues,
            trained_on=len(training.dataset.train),
            report=report,
        )
        scores = training.evaluate(state)
    head = {"run_dir": str(directory), "step": step, "images": len(train[1]), "test_images": len(test[1])}
    whole = {"test_accuracy": scores["accuracy"], "test_loss": scores["loss"]}
    return _finite(head | whole | numbers)


def _count(images: int | None, available: int) -> int:
    if images is not None and images > available:
        raise ArgumentError(f"images={images} is more than the {available} training images; pass at most {available}")
    return min(available, DEFAULT_IMAGES) if images is None else images


def _first(part: Images | Encoded, count: int, training: Training) -> tuple[jax.Array, jax.Array]:
    """The first images and their labels, or all if there are fewer; streamed images are centre-cropped."""
    part = part.take(np.arange(min(count, len(part))))
    if isinstance(part, Images):
        return jnp.asarray(part.images), jnp.asarray(part.labels)
    side = training.dataset.image_shape[0]
    [batch] = eval_batches(part, batch_size=len(part), image_size=side, workers=training.recipe.workers)
    readable = batch["weight"] > 0
    return jnp.asarray(batch["image"][readable]), jnp.asarray(batch["label"][readable])


def _finite(tree: Any) -> Any:
    """The same numbers with None in place of NaN and infinities, which JSON cannot represent."""
    if isinstance(tree, dict):
        return {name: _finite(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
