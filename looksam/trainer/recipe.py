"""A recipe holds every setting of a run: typed, checked, and saved with it.

The text below each field is its help on the command line, and ``SECTIONS`` groups the fields there. This module imports
no framework, so that ``looksam --help`` stays fast.
"""

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from looksam.arguments import Scaling
from looksam.methods import METHODS
from looksam.trainer import own_code
from looksam.trainer.data.reading import DATASETS
from looksam.trainer.models import MODELS
from looksam.trainer.setting_types import (
    check_at_least,
    check_fraction,
    check_name,
    check_step_or_fraction,
    check_type,
)

LARGEST_SEED = 2**31 - 1  # what a compiled program takes
MODEL_SIZES = ("width", "depth", "widen", "heads", "patch")
MODEL_OPTIONS = (*MODEL_SIZES, "pooling", "gelu", "dropout", "stochastic_depth")  # what a model's builder may take

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]


@dataclass(frozen=True)
class Recipe:
    """The settings of one run. ``None`` means that a setting is unused, or that the model's own default applies.

    ``model`` and ``dataset`` also take a function of your own, which is kept as ``"path/to/file.py:function"``, so that
    the recipe can be saved with the run.
    """

    # data
    dataset: str = "digits"
    """Name of the dataset: digits, cifar100 or imagenet, or parquet, folder or file.py:function for your own."""
    data_dir: str | None = None
    """Folder of the dataset's files; by default the environment variable LOOKSAM_DATA."""
    download: bool = False
    """Download the dataset if it is not there (cifar100 only)."""
    image_column: str | None = None
    """Column of the encoded images in Parquet files, if there are several."""
    label_column: str | None = None
    """Column of the labels in Parquet files, if there are several."""
    num_classes: int | None = None
    """Number of classes of Parquet files, if some have no training image and the files do not name them."""
    test_split: str | None = None
    """Split to test on, such as validation; by default test, or else validation or val."""
    validation: float | None = None
    """Fraction of the training set to hold out and select the best checkpoint on."""
    classes: int | None = None
    """Use only this many classes, the first ones."""
    train_limit: int | None = None
    """Use only this many training images, balanced over the classes."""
    label_noise: float = 0.0
    """Fraction of the training labels that are replaced by random ones."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """Whether to stop at an unreadable image or to leave it out."""
    workers: int = 0
    """Number of processes that decode images, for datasets that do not fit in memory."""

    # model
    model: str = "mlp"
    """Name, such as resnet18 or vit_b16, or file.py:function for your own; resnet, wide_resnet and vit take sizes."""
    image_size: int | None = None
    """Side of the images that the model sees; by default their own, or 224 if they differ or do not fit in memory."""
    width: int | None = None
    """Number of channels, or the size of a token."""
    depth: int | None = None
    """Number of layers or blocks."""
    widen: int | None = None
    """Widening factor of a wide ResNet."""
    heads: int | None = None
    """Number of attention heads."""
    patch: int | None = None
    """Side of the patches that a ViT sees."""
    pooling: Literal["mean", "token"] | None = None
    """What a ViT classifies by: the mean of its tokens, or a class token as most public weights have; mean if none."""
    gelu: Literal["tanh", "exact"] | None = None
    """Formula of a ViT's GELU: its tanh approximation, or exact as in most public weights; tanh if none."""
    dropout: float | None = None
    """Fraction of the activations to drop."""
    stochastic_depth: float | None = None
    """Fraction of the images that skip the last block; earlier blocks are skipped less often."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the computation; parameters are float32, or float64 with it, which needs JAX_ENABLE_X64=1."""
    init_from: str | None = None
    """Start from trained weights: the folder of a run or of an export, or a safetensors file."""
    freeze: str | None = None
    """Regular expression: parameters with a match in their path, such as blocks/0/norm1/scale, are not trained."""

    # augmentation
    crop_padding: int | None = None
    """Pixels of padding before a random crop, which is then flipped at random."""
    randaugment: int = 0
    """Number of RandAugment operations per image; 0 turns it off."""
    randaugment_magnitude: float = 10.0
    """Strength of the RandAugment operations; 10 is full strength."""
    mixup: float = 0.0
    """Parameter of Mixup's Beta distribution; 0 turns it off."""
    label_smoothing: float = 0.0
    """Share of each label that is spread evenly over all classes."""

    # base optimizer
    optimizer: Literal["sgdm", "adamw", "lamb"] = "sgdm"
    """Base optimizer, which updates the parameters with the gradient that the rule returns."""
    learning_rate: float = 0.1
    """Peak learning rate, reached after the warm-up."""
    scale_from_batch: int | None = None
    """Batch size that the learning rate is meant for; it is scaled linearly to the actual batch size."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """Shape of the learning rate's decay to 0 after the warm-up."""
    warmup_steps: int = 0
    """Number of steps in which the learning rate grows from 0 to its peak."""
    weight_decay: float = 0.0
    """Weight decay: L2 regularisation with sgdm, decoupled with adamw and lamb."""
    decay_all: bool = True
    """Decay biases and normalisation parameters too, not only kernels and embeddings."""
    momentum: float = 0.9
    """Momentum of sgdm; msam's own, along which it perturbs, has the same value."""
    clip_norm: float | None = None
    """Largest global norm of the gradient that the optimizer sees; longer ones are scaled down."""
    batch_size: int = 128
    """Number of images per step, over all devices."""
    across_epochs: bool = False
    """Let batches continue over the end of an epoch; a batch may then be larger than the dataset."""
    epochs: int = 100
    """Number of passes over the training set."""
    steps: int | None = None
    """Stop after this many steps; the learning-rate schedule still spans all epochs."""

    # sharpness-aware rule
    method: MethodName = "base"
    """Rule that chooses the gradient; base is the optimizer alone."""
    rho: float = 0.05
    """Radius of the perturbation at which the second gradient is taken."""
    alpha: float = 0.7
    """Strength of the direction that LookSAM reuses, or along which gsam ascends."""
    k: int = 5
    """Number of steps that share one second gradient."""
    p: float = 2.0
    """The p of the perturbation's p-norm: more than 1, up to inf."""
    scaling: Scaling = "normalized"
    """Formula of the layer-wise scaling."""
    eta: float = 0.01
    """Added to the size of each weight, by which the perturbation is scaled, so that weights near 0 move too."""
    start: int | float = 0
    """First step on which the rule acts, or as a number below 1 the fraction of the run before it, such as 0.8."""
    stop: int | float | None = None
    """Step from which on the rule does not act any more, or as a number below 1 a fraction of the run."""
    perturb: str | None = None
    """Regular expression: only parameters with a match in their path, such as hidden/0/kernel, are perturbed."""

    # parallelism
    mesh: str = "auto"
    """Devices, such as data=4,fsdp=2: both axes split the batch, fsdp the parameters too; auto uses all devices."""
    microbatch: int | None = None
    """Number of images processed at a time over all devices; sets the memory for activations."""
    groups: int | Literal["device"] | None = None
    """Number of parts of the batch that are perturbed separately (m-sharpness), or device for one part per device."""

    # run
    seed: int = 0
    """Seed of the initial parameters, the order of the images, and augmentation."""
    eval_every: int = 1
    """Number of epochs between evaluations."""
    log_every: int = 50
    """Number of steps between lines of metrics."""
    checkpoint_every: int = 1000
    """Number of steps between checkpoints."""
    keep_checkpoints: int = 2
    """Number of recent checkpoints to keep, in addition to the best one."""
    patience: int | None = None
    """Stop after this many evaluations in a row without a better accuracy."""
    max_minutes: float | None = None
    """Stop after this many minutes, with everything saved; the same command then resumes the run."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too."""
    wandb: str | None = None
    """Project of Weights & Biases to which the metrics are sent too."""

    def __post_init__(self) -> None:
        for name, built_in in (("dataset", DATASETS), ("model", MODELS)):
            object.__setattr__(self, name, own_code.as_name(name, getattr(self, name), built_in))
        for field in dataclasses.fields(self):
            if field.name != "method":
                check_type(field.name, getattr(self, field.name), field.type)
        check_name("method", self.method, METHODS)
        for name in ("batch_size", "epochs", "k", "eval_every", "log_every", "checkpoint_every", "keep_checkpoints"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("patience", self.patience, 1)
        for name in ("classes", "num_classes"):
            check_at_least(name, getattr(self, name), 2)
        for name in ("steps", "microbatch", "train_limit", "image_size", "scale_from_batch", *MODEL_SIZES):
            check_at_least(name, getattr(self, name), 1)
        for name in ("workers", "randaugment", "warmup_steps", "seed", "crop_padding"):
            check_at_least(name, getattr(self, name), 0)
        for name in ("learning_rate", "weight_decay", "rho", "alpha", "eta", "mixup", "randaugment_magnitude"):
            check_at_least(name, getattr(self, name), 0.0)
        for name in ("label_noise", "label_smoothing", "momentum", "dropout", "stochastic_depth", "validation"):
            check_fraction(name, getattr(self, name))
        if self.seed > LARGEST_SEED:
            raise ValueError(f"seed={self.seed} is out of range; pass 0 <= seed <= {LARGEST_SEED}.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm={self.clip_norm} is out of range; pass a norm > 0, or leave it out.")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"max_minutes={self.max_minutes} is out of range; pass minutes > 0, or leave it out.")
        if not self.p > 1:
            raise ValueError(f"p={self.p} is out of range; pass 1 < p <= inf.")
        if self.groups != "device":
            check_at_least("groups", self.groups, 1)
        self._check_rule()
        self.mesh_sizes()

    def _check_rule(self) -> None:
        for name in ("start", "stop"):
            check_step_or_fraction(name, getattr(self, name))
        if self.stop is not None and type(self.start) is type(self.stop) and self.stop <= self.start:
            raise ValueError(
                f"stop={self.stop} is not after start={self.start}, so the rule would never act; pass a later stop."
            )
        for name, example in (("perturb", "kernel$"), ("freeze", "^blocks/")):
            _check_expression(name, getattr(self, name), example)
        if self.groups is not None and not METHODS[self.method].takes_second_gradient:
            raise ValueError(
                f"groups={self.groups} perturbs each group along its own gradient, and {self.method} takes no gradient "
                "to perturb along; leave groups out."
            )

    def model_options(self) -> dict[str, Any]:
        """The options of the model that the recipe sets, by name."""
        return {name: getattr(self, name) for name in MODEL_OPTIONS if getattr(self, name) is not None}

    def mesh_sizes(self) -> tuple[int, int] | None:
        """The sizes of the mesh axes ``data`` and ``fsdp``; None for all available devices on ``data``."""
        if self.mesh == "auto":
            return None
        sizes = dict(part.partition("=")[::2] for part in self.mesh.split(","))
        if not sizes.keys() <= {"data", "fsdp"} or not all(size.isdecimal() and int(size) for size in sizes.values()):
            raise ValueError(f"mesh={self.mesh!r} is not understood; pass e.g. data=8, fsdp=8, data=4,fsdp=2 or auto.")
        return int(sizes.get("data", 1)), int(sizes.get("fsdp", 1))

    def peak_learning_rate(self) -> float:
        """The learning rate after the warm-up, scaled to the batch size if ``scale_from_batch`` is set."""
        return self.learning_rate * (self.batch_size / self.scale_from_batch if self.scale_from_batch else 1)

    def replace(self, **changes: Any) -> "Recipe":
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All settings, by name."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """All settings as a JSON object, one per line."""
        return json.dumps(self.to_dict(), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """The recipe that ``to_json`` wrote; settings that are missing get their defaults."""
        settings = json.loads(text)
        if not isinstance(settings, dict):
            raise ValueError(f"a recipe is a JSON object of settings, but this is {text[:40]!r}.")
        return cls.from_dict(settings)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> "Recipe":
        """The recipe with these settings; those that are missing get their defaults."""
        for name in settings:
            check_name("setting", name, [field.name for field in dataclasses.fields(cls)])
        return cls(**settings)


def differences(ours: Recipe, theirs: Recipe) -> dict[str, tuple[Any, Any]]:
    """The settings in which two recipes differ, with both values."""
    pairs = {f.name: (getattr(ours, f.name), getattr(theirs, f.name)) for f in dataclasses.fields(Recipe)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


# --- sections of the help -----------------------------------------------------------------------------------------

_FIRST_FIELDS = {
    "dataset": "data",
    "model": "model",
    "crop_padding": "augmentation",
    "optimizer": "base optimizer",
    "method": "sharpness-aware rule",
    "mesh": "parallelism",
    "seed": "run",
}


def _sections() -> dict[str, tuple[str, ...]]:
    sections: dict[str, tuple[str, ...]] = {}
    title = ""
    for field in dataclasses.fields(Recipe):
        title = _FIRST_FIELDS.get(field.name, title)
        sections[title] = (*sections.get(title, ()), field.name)
    return sections


SECTIONS: dict[str, tuple[str, ...]] = _sections()  # title -> names of its fields


def _check_expression(name: str, text: str | None, example: str) -> None:
    try:
        re.compile(text or "")
    except re.error as error:
        raise ValueError(f"{name}={text!r} is not a regular expression ({error}); pass e.g. {example!r}.") from None
