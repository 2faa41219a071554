"""Types of a recipe's settings: does a value fit, how is it called, and how is it read from a flag.

A recipe: every setting of a run, typed, checked, and saved with it.
"""

import contextlib
import dataclasses
import json
import math
import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from looksam.arguments import did_you_mean
from looksam.trainer.data import NAMES as DATASETS
from looksam.trainer.models import MODELS


def fits(value: Any, wanted: Any) -> bool:
    if get_origin(wanted) in (Union, types.UnionType):
        return any(fits(value, option) for option in get_args(wanted))
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if wanted is type(None):
        return value is None
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def describe(wanted: Any) -> str:
    if get_origin(wanted) in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(wanted))
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(str, get_args(wanted)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}[wanted]


def parse(text: str, wanted: Any) -> Any:
    """The value a flag's text stands for. Raises ValueError, with a sentence for the user, where it stands for none."""
    if get_origin(wanted) in (Union, types.UnionType):
        return _parse_union(text, wanted)
    if get_origin(wanted) is Literal:
        if text not in get_args(wanted):
            raise ValueError(f"{text!r} is unknown{did_you_mean(text, get_args(wanted))}")
        return text
    if wanted is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{text!r} is not {describe(bool)}")
        return text.lower() == "true"
    try:
        return wanted(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {describe(wanted)}") from None


def _parse_union(text: str, wanted: Any) -> Any:
    options = get_args(wanted)
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        if option is not type(None):
            with contextlib.suppress(ValueError):
                return parse(text, option)
    raise ValueError(f"{text!r} is not {describe(wanted)}")


Method = Literal["base", "sam", "sam_k", "look_sam", "layer_sam", "look_layer_sam"]

MODEL_SIZES = ("width", "depth", "widen", "heads", "patch")


@dataclass(frozen=True)
class Recipe:
    """The settings of one run. ``None`` means: not used, or the model's own default.

    The comments below are the sections and the help texts of the command line.
    """

    # what is learnt from
    dataset: str = "digits"  # digits, cifar100, imagenet, or any parquet or image folder
    data_dir: str | None = None  # where the files are; the environment's LOOKSAM_DATA if not given
    download: bool = False  # fetch the data if it is not there (cifar100)
    validation: float | None = None  # share of the training set held out, and used in place of the test set
    classes: int | None = None  # use only this many of the classes, the first ones
    train_limit: int | None = None  # use only this many training images, as many of each class as can be
    label_noise: float = 0.0  # share of the training labels drawn at random
    on_bad_image: Literal["fail", "skip"] = "fail"  # stop at an unreadable image, or go on without it
    workers: int = 0  # processes that decode images, for sets that do not fit in memory

    # the model
    model: str = "mlp"  # resnet18, wrn28_10, vit_b16, ...; resnet, wide_resnet and vit take sizes
    image_size: int | None = None  # side of the images the model sees; none: as they are, 224 if streamed
    width: int | None = None  # channels, or size of a token
    depth: int | None = None  # layers or blocks
    widen: int | None = None  # of a wide ResNet
    heads: int | None = None  # attention heads
    patch: int | None = None  # side of the patches a ViT sees
    dropout: float | None = None  # share of the activations dropped
    stochastic_depth: float | None = None  # share of the images that skip the last block
    dtype: Literal["float32", "bfloat16"] = "float32"  # what is computed in; parameters are float32

    # augmentation
    crop_padding: int | None = None  # random crop after padding, and flip
    randaugment: int = 0  # operations an image; 0 is off
    randaugment_magnitude: float = 10.0  # strength of the operations, 10 is full
    mixup: float = 0.0  # parameter of the Beta distribution; 0 is off
    label_smoothing: float = 0.0  # share of a label spread over all classes

    # the base optimizer
    optimizer: Literal["sgdm", "adamw", "lamb"] = "sgdm"  # what takes the gradient that the rule returns
    learning_rate: float = 0.1  # peak, after the warm-up
    scale_from_batch: int | None = None  # the learning rate is for this batch, and grows linearly with the real one
    schedule: Literal["cosine", "linear"] = "cosine"  # decay to 0 after the warm-up
    warmup_steps: int = 0  # steps in which the learning rate grows from 0 to its peak
    weight_decay: float = 0.0  # L2 with sgdm, decoupled with adamw and lamb
    decay_all: bool = True  # decay biases and norms too, or only kernels and embeddings
    momentum: float = 0.9  # momentum of sgdm
    clip_norm: float | None = None  # largest global norm of the gradient that the rule returns
    batch_size: int = 128  # images a step, over all devices
    across_epochs: bool = False  # let batches run on over the end of an epoch; they may be larger than the set then
    epochs: int = 100  # passes over the training set
    steps: int | None = None  # stop here instead; the schedule still spans the epochs

    # the rule
    method: Method = "base"  # base is the optimizer alone
    rho: float = 0.05  # radius of the ball in which the steepest neighbour is taken
    alpha: float = 0.7  # strength of the reused part, of look_sam and look_layer_sam
    k: int = 5  # steps that share a second gradient, of sam_k, look_sam and look_layer_sam
    p: float = 2.0  # norm of the ball, more than 1, up to inf
    scaling: Literal["normalized", "literal", "adaptive"] = "normalized"  # of the layer rules

    # how the work is spread
    mesh: str = "auto"  # devices, like data=4,fsdp=2: the batch is cut over both, the state over fsdp; auto: all
    microbatch: int | None = None  # images worked at a time, over all devices; memory grows with these, not the batch
    groups: int | Literal["device"] | None = None  # parts of the batch that climb on their own (m-sharpness)

    # the run
    seed: int = 0  # seed of the first parameters, the order of the images and all that is drawn
    eval_every: int = 1  # epochs between evaluations
    log_every: int = 50  # steps between lines of metrics
    checkpoint_every: int = 1000  # steps between checkpoints
    keep_checkpoints: int = 2  # that many of the last, besides the best

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_type(field.name, getattr(self, field.name), field.type)
        _known("dataset", self.dataset, list(DATASETS))
        _known("model", self.model, list(MODELS))
        for name in ("batch_size", "epochs", "k", "eval_every", "log_every", "checkpoint_every", "keep_checkpoints"):
            _at_least(name, getattr(self, name), 1)
        for name in ("steps", "microbatch", "classes", "train_limit", "image_size", "scale_from_batch", *MODEL_SIZES):
            _at_least(name, getattr(self, name), 1)
        for name in ("workers", "randaugment", "warmup_steps", "seed", "crop_padding"):
            _at_least(name, getattr(self, name), 0)
        for name in ("learning_rate", "weight_decay", "rho", "alpha", "mixup", "randaugment_magnitude"):
            _at_least(name, getattr(self, name), 0.0)
        for name in ("label_noise", "label_smoothing", "momentum", "dropout", "stochastic_depth", "validation"):
            _share(name, getattr(self, name))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm={self.clip_norm} is out of range; pass a norm > 0, or leave it out.")
        if not self.p > 1:
            raise ValueError(f"p={self.p} is out of range; pass 1 < p <= inf.")
        if self.groups != "device":
            _at_least("groups", self.groups, 1)
        self.mesh_sizes()

    def mesh_sizes(self) -> tuple[int, int] | None:
        """Devices over which the batch alone is cut, and those over which the state is cut too; None: all there are."""
        if self.mesh == "auto":
            return None
        sizes = dict(part.partition("=")[::2] for part in self.mesh.split(","))
        if not sizes.keys() <= {"data", "fsdp"} or not all(size.isdecimal() and int(size) for size in sizes.values()):
            raise ValueError(f"mesh={self.mesh!r} is not understood; pass e.g. data=8, fsdp=8, data=4,fsdp=2 or auto.")
        return int(sizes.get("data", 1)), int(sizes.get("fsdp", 1))

    def peak_learning_rate(self) -> float:
        return self.learning_rate * (self.batch_size / self.scale_from_batch if self.scale_from_batch else 1)

    def replace(self, **changes: Any) -> "Recipe":
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        settings = json.loads(text)
        if not isinstance(settings, dict):
            raise ValueError(f"a recipe is a JSON object of settings, and this is {text[:40]!r}.")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            _known("setting", name, known)
        return cls(**settings)


def differences(ours: Recipe, theirs: Recipe) -> dict[str, tuple[Any, Any]]:
    """The settings in which two recipes differ."""
    pairs = {f.name: (getattr(ours, f.name), getattr(theirs, f.name)) for f in dataclasses.fields(Recipe)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _check_type(name: str, value: Any, wanted: Any) -> None:

    if not fits(value, wanted):
        raise TypeError(f"{name}={value!r} has the wrong type; pass {describe(wanted)}.")


def _known(what: str, name: str, names: list[str]) -> None:
    if name not in names:
        raise ValueError(f"{what} {name!r} is unknown{did_you_mean(name, names)}")


def _at_least(name: str, value: float | None, least: float) -> None:
    if value is not None and not least <= value < math.inf:
        raise ValueError(f"{name}={value} is out of range; pass {name} >= {least}.")


def _share(name: str, value: float | None) -> None:
    if value is not None and not 0 <= value < 1:
        raise ValueError(f"{name}={value} is out of range; pass 0 <= {name} < 1.")
