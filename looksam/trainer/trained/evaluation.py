"""Scores of a trained model: on its own data wherever that is now, on other data, in total and per class."""

import csv
import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.trainer.batches import make_eval_batches, prepared, read, resized
from looksam.trainer.data import Dataset, Encoded, Images
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.checkpoints import CheckpointChoice
from looksam.trainer.run_folder.run_directory import RunError, read_recipe
from looksam.trainer.step import make_eval_step
from looksam.trainer.trained.trained_model import TrainedModel


def evaluate_run(
    run_dir: str | pathlib.Path,
    checkpoint: CheckpointChoice = "last",
    *,
    data_dir: str | None = None,
    dataset: str | None = None,
    split: str | None = None,
    confusion: bool = False,
) -> dict[str, Any]:
    """Returns accuracy in percent and loss of a run's checkpoint on its own data or on other data of the same classes.

    Images are normalised with the numbers of the run, whatever data it is. The run may still be training.

    Args:
      run_dir: the run's folder.
      checkpoint: "last" for the latest valid one, "best" for the one with the highest best metric, or a step.
      data_dir: where the data is; by default where the recipe says.
      dataset: another dataset, such as "folder"; by default the recipe's.
      split: "train", "validation" or "test"; by default test, and validation where there is one.
      confusion: also count how often each class was taken for each other one.

    Returns:
      ``step``, ``run_dir``, the (first) ``split``, and of each split ``<split>_accuracy``, ``<split>_loss`` and
      ``<split>_images``. With ``confusion`` also ``class_names``, and of the test split, or the one that was asked for,
      ``confusion``, with a row for each class that counts its images by predicted class, and ``per_class``, a list of
      ``{"class", "images", "accuracy"}``. The accuracy of a class without images is None.
    """
    directory = pathlib.Path(run_dir)
    changes = {name: value for name, value in (("data_dir", data_dir), ("dataset", dataset)) if value is not None}
    recipe = read_recipe(directory).replace(mesh="data=1", microbatch=None, groups=None, **changes)
    model = TrainedModel.of_run(directory, checkpoint)
    data = load_for(model, recipe)
    names = _splits(data, split)
    result: dict[str, Any] = {"step": model.step, "split": names[0]}
    for name in names:
        scores, counts = _score(model, recipe, data, name, confusion)
        result |= {f"{name}_{score}": value for score, value in scores.items()}
        if confusion:
            result |= {"class_names": list(model.class_names), "per_class": _per_class(counts, model.class_names)}
            result["confusion"] = counts.tolist()
    return result | {"run_dir": str(directory)}


def load_for(model: TrainedModel, recipe: Recipe) -> Dataset:
    """Returns the data of a recipe as a model takes it. Raises RunError unless it has the model's classes."""
    options = {"max_decoded_bytes": 0} if model.crops else {}  # streamed, as the run's images were
    whole = read(recipe.replace(image_size=model.image_shape[0]), **options)
    # A batch may be larger than the data: no batch of it is trained on.
    data = prepared(recipe.replace(across_epochs=True, image_size=None), whole)
    _check_classes(data, model)
    if data.image_shape[2] != model.image_shape[2]:
        raise RunError(
            f"the images have {data.image_shape[2]} channels, and those of {model.source} {model.image_shape[2]}; pass "
            "other data."
        )
    if not model.crops and isinstance(data.test, Encoded):
        raise RunError(
            f"the images are too many for memory or differ in size, and those of {model.source} had one size and were "
            "not cropped; pass images of one size."
        )
    data = resized(data, model.image_shape[:2])
    return dataclasses.replace(data, mean=model.data.mean, std=model.data.std)


def write_csv(path: pathlib.Path, result: dict[str, Any]) -> None:
    """Writes one row per class: its name, images, accuracy, and how often each class was predicted."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["class", "images", "accuracy", *result["class_names"]])
        for row, counts in zip(result["per_class"], result["confusion"], strict=True):
            writer.writerow([row["class"], row["images"], row["accuracy"], *counts])


def _check_classes(data: Dataset, model: TrainedModel) -> None:
    ours, theirs = model.class_names, data.class_names
    if ours == theirs:
        return
    if len(ours) != len(theirs):
        difference = f"{len(theirs)} classes, and {len(ours)} in the run"
    else:
        i = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        difference = f"{theirs[i]!r} as class {i}, and {ours[i]!r} in the run"
    raise RunError(f"the data has {difference}, {model.source}; pass data of the same classes, by the same names.")


def _splits(data: Dataset, split: str | None) -> list[str]:
    """Returns the splits to evaluate: the one that was asked for, or test, and validation where there is one."""
    there = list(data.splits())
    if split is None:
        return [name for name in there if name != "train"]
    if split not in there:
        raise RunError(f"split={split!r} is not in the data; it has {', '.join(there)}.")
    return [split]


def _score(
    model: TrainedModel, recipe: Recipe, data: Dataset, split: str, confusion: bool
) -> tuple[dict[str, Any], np.ndarray]:
    part: Images | Encoded = data.splits()[split]
    data = dataclasses.replace(data, test=part)
    params, stats = jax.tree.map(jnp.asarray, (model.params, model.stats))
    score, logits = jax.jit(make_eval_step(data, model.model)), jax.jit(model.logits_function())
    sums = {"loss": 0.0, "hits": 0.0, "images": 0.0}
    counts = np.zeros((data.num_classes, data.num_classes), np.int64)
    for batch in make_eval_batches(data, recipe):
        sums = {name: sums[name] + float(value) for name, value in score(params, stats, *batch).items()}
        if confusion:
            predicted = np.argmax(np.asarray(logits(params, stats, batch.images)), -1)
            weight = np.asarray(batch.weight).astype(np.int64)  # 0 for images that only fill up a batch
            np.add.at(counts, (np.asarray(batch.labels), predicted), weight)
    images = sums["images"]
    return {"accuracy": 100 * sums["hits"] / images, "loss": sums["loss"] / images, "images": int(images)}, counts


def _per_class(counts: np.ndarray, names: tuple[str, ...]) -> list[dict[str, Any]]:
    images, hits = counts.sum(1).tolist(), np.diag(counts).tolist()
    return [
        {"class": name, "images": total, "accuracy": 100 * right / total if total else None}
        for name, total, right in zip(names, images, hits, strict=True)
    ]
