"""Flatness of a trained model: ``looksam.analysis.measure`` at a checkpoint of a run, on a sample of its images."""

import math
import pathlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from looksam.analysis import measure
from looksam.arguments import ArgumentError
from looksam.trainer.data import Encoded, Images, eval_batches, hold_out
from looksam.trainer.kept_parts import KeptParts, digest_of
from looksam.trainer.loop import restored
from looksam.trainer.run_folder.checkpoints import CheckpointChoice
from looksam.trainer.run_folder.run_directory import FREE_TO_CHANGE, read_recipe
from looksam.trainer.step import TrainState, make_eval_loss
from looksam.trainer.training import Training

DEFAULT_IMAGES = 200
SAMPLE_SEED = 0  # one sample for every run on the same data
PIXELS_AT_ONCE = 200 * 32 * 32  # of the images that are processed at a time, which bounds the memory


def analyze_run(
    run_dir: str | pathlib.Path,
    *,
    images: int | Literal["all"] | None = None,
    rho: float | None = None,
    eigenvalues: int = 3,
    checkpoint: CheckpointChoice = "last",
    keep: str | pathlib.Path | None = None,
    report: Callable[[str], None] = lambda line: None,
    progress: Callable[[str, float, float], None] = lambda title, done, total: None,
) -> dict[str, Any]:
    """Measure how flat the loss is around a checkpoint of a run; the numbers, with None where one is not finite.

    Args:
      run_dir: the folder of the run, which may still be training.
      images: how many training images, and at most how many test images, are sampled; by default 200 or all there are.
      rho: radius of the perturbation in the 2-norm; by default the recipe's.
      eigenvalues: number of the Hessian's largest eigenvalues.
      checkpoint: ``"last"``, ``"best"`` or a step.
      keep: a folder in which finished parts are kept, so that an interrupted call can be resumed; by default none.
      report: called with a line about what is measured.
      progress: called with what is being measured, the work done and all work of this call.
    """
    directory = pathlib.Path(run_dir)
    radius = read_recipe(directory).rho if rho is None else rho
    if not radius > 0:
        raise ArgumentError(f"the recipe's rho is {radius}, which leaves nothing to perturb; pass rho, e.g. 0.05")
    report(f"reading {directory} and its images")
    # in float32: a product with the Hessian is lost in bfloat16's rounding
    with restored(directory, checkpoint=checkpoint, dtype="float32") as (training, step, state):
        dataset = training.dataset
        count = _count(images, len(dataset.train))
        train, test = (_sample(part, count, training) for part in (dataset.train, dataset.test))
        sizes = {
            **{"images": len(train[1]), "images_of": len(dataset.train)},
            **{"test_images": len(test[1]), "test_images_of": len(dataset.test)},
        }
        report(
            f"step {step}: {len(train[1]):,} of {len(dataset.train):,} training images, "
            f"{len(test[1]):,} of {len(dataset.test):,} test images"
        )
        eval_loss = make_eval_loss(dataset, training.programs.model)
        settings = {name: x for name, x in training.recipe.to_dict().items() if name not in FREE_TO_CHANGE}
        weights = state.params, state.stats
        kept = None if keep is None else KeptParts(keep, digest_of(settings, (weights, train, test)))
        if kept and kept.parts:
            report(f"{len(kept.parts)} parts are kept in {keep} and not measured again")
        numbers = measure(
            lambda params, images, labels: eval_loss(params, state.stats, images, labels),
            state.params,
            train,
            test,
            rho=radius,
            key=jax.random.key(0),
            eigenvalues=eigenvalues,
            trained_on=len(dataset.train),
            at_once=max(1, PIXELS_AT_ONCE // math.prod(dataset.image_shape[:2])),
            kept=kept,
            progress=progress,
        )
        scores = _scores(training, state, kept, report)
    head = {"run_dir": str(directory), "step": step} | sizes
    whole = {"test_accuracy": scores["accuracy"], "test_loss": scores["loss"]}
    return _finite(head | whole | numbers)


def _scores(
    training: Training, state: TrainState, kept: KeptParts | None, report: Callable[[str], None]
) -> dict[str, float]:
    """Accuracy and loss on the whole test set."""
    scores = kept.get("evaluation") if kept else None
    if scores is None:
        report(f"evaluating on all {len(training.dataset.test):,} test images")
        scores = training.evaluate(state)
        if kept:
            kept.put("evaluation", scores)
    return scores


def _count(images: int | Literal["all"] | None, available: int) -> int | None:
    """The size of the samples; None for all images."""
    if images is None:
        return DEFAULT_IMAGES
    if images == "all":
        return None
    if images > available:
        raise ArgumentError(f"images={images} is more than the {available} training images; pass at most {available}")
    return images


def _sample(part: Images | Encoded, count: int | None, training: Training) -> tuple[jax.Array, jax.Array]:
    """Images in the proportions of their classes, in random order, and their labels; streamed ones are centre-cropped.

    Neither the first images nor their order will do: some datasets are sorted by class.
    """
    whole: Any = part
    chosen = whole if count is None or count >= len(whole) else hold_out(whole, count, SAMPLE_SEED)[1]
    part = chosen.take(np.random.default_rng(SAMPLE_SEED).permutation(len(chosen)))
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
