"""The models, each a pair of pure functions of nested dicts: ``build_model(name, ...)`` returns ``init`` and ``apply``.

``MODELS`` lists them by name and can be read without loading JAX; a model's own module is imported when it is built.
To add a model, write its module and a builder ``(image_shape, num_classes, dtype, **options)``, and name both here. A
model of your own needs no change here: ``own_model`` builds what ``file.py:function`` or an entry point names.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from looksam.trainer import own_code

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from looksam.trainer.models.functional import Model

__all__ = ["MODELS", "Model", "ModelEntry", "build_model", "find_builder"]


class ModelEntry(NamedTuple):
    """Where a model's builder is, and which of its options the model's name fixes."""

    module: str  # in this package
    builder: str  # a function of that module, and the name under which all of its options are free
    fixed: Mapping[str, Any] = {}


_BASE = {"width": 768, "depth": 12, "heads": 12, "mlp_ratio": 4.0}
_SMALL = {"width": 384, "depth": 12, "heads": 6, "mlp_ratio": 4.0}
_TINY = {"patch": 4, "width": 192, "depth": 6, "heads": 3, "mlp_ratio": 4.0}

# A named size fixes its architecture; the generic names mlp, resnet, vit and wide_resnet take it as options.
MODELS: dict[str, ModelEntry] = {
    "mlp": ModelEntry("mlp", "mlp"),
    "mlp_20m": ModelEntry("mlp", "mlp", {"widths": (3072, 2048, 2048)}),  # 20M parameters on 32² photographs
    "resnet": ModelEntry("resnet", "resnet"),
    "resnet18": ModelEntry("resnet", "resnet", {"blocks": (2, 2, 2, 2), "width": 64, "bottleneck": False}),
    "resnet50": ModelEntry("resnet", "resnet", {"blocks": (3, 4, 6, 3), "width": 64, "bottleneck": True}),
    "resnet8": ModelEntry("resnet", "resnet", {"blocks": (1, 1, 1), "width": 16, "bottleneck": False}),
    "resnet_small": ModelEntry("resnet", "resnet", {"blocks": (2, 2, 2), "width": 16, "bottleneck": False}),
    "vit": ModelEntry("vit", "vit"),
    "vit_b16": ModelEntry("vit", "vit", {"patch": 16, **_BASE}),
    "vit_b32": ModelEntry("vit", "vit", {"patch": 32, **_BASE}),
    "vit_s16": ModelEntry("vit", "vit", {"patch": 16, **_SMALL}),
    "vit_s32": ModelEntry("vit", "vit", {"patch": 32, **_SMALL}),
    "vit_tiny": ModelEntry("vit", "vit", _TINY),
    "wide_resnet": ModelEntry("resnet", "wide_resnet"),
    "wrn28_10": ModelEntry("resnet", "wide_resnet", {"depth": 28, "widen": 10}),
    "wrn_small": ModelEntry("resnet", "wide_resnet", {"depth": 10, "widen": 2}),
}


def build_model(
    name: str | Callable[..., Any],
    *,
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: "DTypeLike" = "float32",
    **options: Any,
) -> "Model":
    """Builds a model by name, as pure functions.

    Args:
      name: one of ``MODELS``; for a model of your own ``file.py:function``, ``package.module:function``, the name of an
        entry point of ``looksam.models``, or the function itself.
      image_shape: (height, width, channels).
      num_classes: the number of logits.
      dtype: the dtype of the computation. Parameters, statistics, softmax and logits are float32, or float64 with it.
      options: the model's own options; a named size leaves only those that do not change its architecture.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from looksam.trainer.models import build_model
      >>> model = build_model("mlp", image_shape=(8, 8, 1), num_classes=10, widths=(32,))
      >>> params, stats = model.init(jax.random.key(0))
      >>> logits, stats = model.apply(params, stats, jnp.zeros((5, 8, 8, 1)), train=False)
      >>> logits.shape, params["hidden"]["0"]["kernel"].shape
      ((5, 10), (64, 32))
    """
    builder = name if callable(name) else find_builder(name)
    from looksam.trainer.models import options as checks
    from looksam.trainer.models.functional import pure_model
    from looksam.trainer.models.own_model import own_model

    shape, kind = checks.image_shape(image_shape), checks.floating(dtype)
    classes = checks.positive_integer("num_classes", num_classes)
    if callable(name) or name not in MODELS:
        label = getattr(name, "__qualname__", str(name))
        _check_options(label, ModelEntry("", label), builder, options)
        return own_model(label, builder, shape, classes, kind, options)
    entry = MODELS[name]
    _check_options(name, entry, builder, options)
    return pure_model(builder(shape, classes, kind, **entry.fixed, **options), shape, kind)


def find_builder(name: str) -> Callable[..., Any]:
    """Imports the function that builds the model of this name; raises if there is none."""
    name = own_code.as_name("model", name, MODELS)
    if name not in MODELS:
        return own_code.load("model", name)
    entry = MODELS[name]
    return getattr(importlib.import_module(f"looksam.trainer.models.{entry.module}"), entry.builder)


def _check_options(name: str, entry: ModelEntry, builder: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(builder).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    free = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in (*entry.fixed, "rngs")]
    for option in options:
        if option in entry.fixed:
            value = entry.fixed[option]
            raise TypeError(f"{name} fixes {option}={value!r}; build {entry.builder!r} to choose {option}.")
        if option not in free:
            raise TypeError(f"{name} has no option {option!r}; its options are {', '.join(free) or 'none'}.")


def __getattr__(name: str) -> Any:
    """Loads ``Model``, which needs JAX, on first use."""
    if name != "Model":
        raise AttributeError(f"module 'looksam.trainer.models' has no attribute {name!r}; it has {', '.join(__all__)}")
    return importlib.import_module("looksam.trainer.models.functional").Model
