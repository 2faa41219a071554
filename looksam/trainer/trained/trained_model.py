"""A trained model on its own, without the data it was trained on: from a run's checkpoint or from an export.

It has the weights, the class names, and what evaluation does to an image: size and normalisation. ``predict_images``,
``export_run``, ``evaluate_run`` and fine-tuning start from it.
"""

import contextlib
import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looksam.trainer.batches import EpochSchedule
from looksam.trainer.data import Dataset, Images
from looksam.trainer.data.transforms.augment import normalize
from looksam.trainer.models import MODELS, Model, build_model, find_builder
from looksam.trainer.optimizers import make_optimizer, make_rule
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.checkpoint_files import Folder
from looksam.trainer.run_folder.checkpoints import CheckpointChoice, Checkpoints
from looksam.trainer.run_folder.dataset_summary import DatasetSummary
from looksam.trainer.run_folder.run_directory import NAME as RECIPE_FILE
from looksam.trainer.run_folder.run_directory import RunError, check_version, read_recipe
from looksam.trainer.step import init_state, moments
from looksam.trainer.trained import weights
from looksam.trainer.trained.weights import CONFIG, FORMAT, read_config, read_weights
from looksam.trainer.training import make_model

VERSION = 1  # of the format of an export


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model with its weights. ``load_model`` returns one."""

    source: str  # the folder it was read from
    step: int  # of the run
    name: str  # of the model in the recipe
    builder: str  # the function that builds it
    options: dict[str, Any]  # all options of that function
    dtype: str  # of the computation
    model: Model
    params: Any
    stats: Any
    data: Dataset  # without images: the shape of an image, its normalisation, and the names of the classes
    crops: bool  # whether an image is scaled and cropped at its centre, or resized as a whole

    @classmethod
    def of_run(cls, run_dir: str | pathlib.Path, checkpoint: CheckpointChoice = "last") -> "TrainedModel":
        """Returns the model of a run's checkpoint. The run's data need not be there."""
        directory = pathlib.Path(run_dir)
        recipe, summary = read_recipe(directory), DatasetSummary.read(directory)
        data = dataset_without_images(summary)
        step, params, stats = _read_checkpoint(directory, recipe, data, summary.splits["train"].images, checkpoint)
        builder, options = architecture(recipe)
        model = make_model(recipe, data)
        return cls(
            str(directory),
            step,
            recipe.model,
            builder,
            options,
            recipe.dtype,
            model,
            params,
            stats,
            data,
            summary.crops,
        )

    @classmethod
    def of_export(cls, folder: str | pathlib.Path) -> "TrainedModel":
        """Returns the model that ``export_run`` wrote into a folder."""
        directory = pathlib.Path(folder)
        config = read_config(directory / CONFIG)
        if config.get("format") != FORMAT:
            raise RunError(f"{directory} holds neither a run nor an export; pass the folder of one.")
        check_version(str(directory / CONFIG), config.get("version"), VERSION, "export the model again")
        names, shape = tuple(config["class_names"]), tuple(config["image_shape"])
        data = _without_images(config["model"], names, shape, tuple(config["mean"]), tuple(config["std"]))
        builder, options = config["builder"], _tuples(config["options"])
        if builder not in MODELS:
            raise RunError(f"{directory} is of {builder!r}, a model of your own; use its run, or model.stablehlo.")
        model = build_model(
            builder, image_shape=shape, num_classes=len(names), dtype=jnp.dtype(config["dtype"]), **options
        )
        arrays = read_weights(directory).arrays
        params, stats = (_from_torch(tree, arrays, directory) for tree in jax.eval_shape(model.init, jax.random.key(0)))
        crops, step = config["preprocessing"] == "crop", config["step"]
        return cls(
            str(directory), step, config["model"], builder, options, config["dtype"], model, params, stats, data, crops
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, in the order of the logits."""
        return self.data.class_names

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the images that the model takes."""
        return self.data.image_shape

    @property
    def grid(self) -> tuple[int, int] | None:
        """The rows and columns of a ViT's patches; None for other models."""
        patch = self.options.get("patch")
        return None if patch is None else (self.image_shape[0] // patch, self.image_shape[1] // patch)

    def logits_function(self) -> Callable[[Any, Any, jax.Array], jax.Array]:
        """Returns ``logits(params, stats, images)`` of uint8 images, the function of evaluation."""
        return lambda params, stats, images: self.model.apply(
            params, stats, normalize(images, *moments(self.data)), train=False
        )[0]

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Returns the logits of uint8 images (n, height, width, channels), in float32."""
        return np.asarray(self._compiled(self.params, self.stats, images))

    @functools.cached_property
    def _compiled(self) -> Callable[..., jax.Array]:
        return jax.jit(self.logits_function())

    def torch_arrays(self) -> dict[str, np.ndarray]:
        """Returns the weights under the names of the PyTorch module, with PyTorch's order of axes."""
        patch = self.options.get("patch") if self.builder == "vit" else None
        return weights.to_torch(self.params, self.stats, patch and (patch, patch, self.image_shape[2]))


def load_model(folder: str | pathlib.Path, checkpoint: CheckpointChoice = "last") -> TrainedModel:
    """Returns the trained model in the folder of a run or of an export.

    Args:
      folder: of ``looksam train`` or ``looksam export``.
      checkpoint: of a run: "last" for the latest valid one, "best" for the one with the highest best metric, or a step.
    """
    if (pathlib.Path(folder) / CONFIG).is_file() and not (pathlib.Path(folder) / RECIPE_FILE).is_file():
        return TrainedModel.of_export(folder)
    return TrainedModel.of_run(folder, checkpoint)


def architecture(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    """Returns the name of the function that builds the recipe's model, and all of its options with their values."""
    if recipe.model not in MODELS:  # a model of the user's own
        return recipe.model, recipe.model_options()
    entry = MODELS[recipe.model]
    parameters = inspect.signature(find_builder(recipe.model)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    return entry.builder, {**defaults, **entry.fixed, **recipe.model_options()}


def dataset_without_images(summary: DatasetSummary) -> Dataset:
    """Returns a dataset of a run's image shape, normalisation and classes, without images."""
    return _without_images("", summary.class_names, summary.image_shape, summary.mean, summary.std)


def _without_images(name: str, class_names: Any, shape: Any, mean: Any, std: Any) -> Dataset:
    empty = Images(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32))
    return Dataset(name, empty, empty, len(class_names), shape, mean, std, class_names=class_names)


def _read_checkpoint(
    directory: pathlib.Path, recipe: Recipe, data: Dataset, train_images: int, checkpoint: CheckpointChoice
) -> tuple[int, Any, Any]:
    """Returns the step, the parameters and the statistics of a checkpoint, in the host's memory."""
    total_steps = EpochSchedule.of(train_images, recipe).steps(recipe.epochs)
    model, rule, tx = make_model(recipe, data), make_rule(recipe, total_steps), make_optimizer(recipe, total_steps)
    shapes = jax.eval_shape(lambda: init_state(jax.random.key(0), model, rule, tx, recipe.freeze))
    like = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), shapes)
    folder = directory / "checkpoints"
    checkpoints = Checkpoints(folder, keep=1, best_metric=_best_metric(folder), read_only=True)
    try:
        result = checkpoints.restore(like, checkpoint)
    finally:
        checkpoints.close()
    if result is None:
        raise RunError(f"{directory} has no checkpoint yet; train longer, or lower checkpoint_every.")
    step, state, _ = result
    return step, state.params, state.stats


def _best_metric(folder: pathlib.Path) -> str:
    """Returns the name of the metric that selected the run's best checkpoint, as the newest readable one has it."""
    stored = Folder(folder)
    for step in reversed(stored.steps()):
        with contextlib.suppress(ValueError, KeyError):
            return str(stored.manifest(step)["best_metric"])
    return "test_accuracy"


def _from_torch(like: Any, arrays: dict[str, np.ndarray], directory: pathlib.Path) -> Any:
    values = {}
    for path, leaf in weights.flat(like).items():
        name = weights.torch_name(path)
        value = weights.from_torch(path, arrays[name], leaf.shape) if name in arrays else None
        if value is None:
            raise RunError(f"{directory} does not have {name!r} as its config.json describes it; export it again.")
        values[path] = value
    return weights.rebuilt(like, values)


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
