"""The models by name. A named size fixes its architecture; the generic names take it as options."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from looksam.trainer.models import checks
from looksam.trainer.models.functional import MakeModule, Model, pure_model
from looksam.trainer.models.mlp import mlp
from looksam.trainer.models.resnet import resnet, wide_resnet
from looksam.trainer.models.vit import vit

Builder = Callable[..., MakeModule]  # (image_shape, num_classes, dtype, **options): checks, and allocates nothing

_BASE: dict[str, Any] = {"width": 768, "depth": 12, "heads": 12, "mlp_ratio": 4.0}
_SMALL: dict[str, Any] = {"width": 384, "depth": 12, "heads": 6, "mlp_ratio": 4.0}
_TINY: dict[str, Any] = {"patch": 4, "width": 192, "depth": 6, "heads": 3, "mlp_ratio": 4.0}

MODELS: dict[str, Builder] = {
    "mlp": mlp,
    "resnet": resnet,
    "resnet18": functools.partial(resnet, blocks=(2, 2, 2, 2), width=64, bottleneck=False),
    "resnet50": functools.partial(resnet, blocks=(3, 4, 6, 3), width=64, bottleneck=True),
    "resnet_small": functools.partial(resnet, blocks=(2, 2, 2), width=16, bottleneck=False),
    "vit": vit,
    "vit_b16": functools.partial(vit, patch=16, **_BASE),
    "vit_b32": functools.partial(vit, patch=32, **_BASE),
    "vit_s16": functools.partial(vit, patch=16, **_SMALL),
    "vit_s32": functools.partial(vit, patch=32, **_SMALL),
    "vit_tiny": functools.partial(vit, **_TINY),
    "wide_resnet": wide_resnet,
    "wrn28_10": functools.partial(wide_resnet, depth=28, widen=10),
    "wrn_small": functools.partial(wide_resnet, depth=10, widen=2),
}


def build_model(
    name: str,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int,
    dtype: DTypeLike = jnp.float32,
    **options: Any,
) -> Model:
    """The model called ``name``, as pure functions.

    Args:
      name: one of ``MODELS``.
      image_shape: (height, width, channels).
      num_classes: the number of logits.
      dtype: what it computes in. Parameters, statistics, softmax and logits stay float32 (or wider, with float64).
      options: those of the model; a named size leaves only the ones that do not change its architecture.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from looksam.trainer.models import build_model
      >>> model = build_model("mlp", image_shape=(8, 8, 1), num_classes=10, widths=(32,))
      >>> params, stats = model.init(jax.random.key(0))
      >>> logits, stats = model.apply(params, stats, jnp.zeros((5, 8, 8, 1)), train=False)
      >>> logits.shape, params["hidden"]["0"]["kernel"].shape
      ((5, 10), (64, 32))
    """
    builder = _find(name)
    _check_options(name, builder, options)
    shape, kind = checks.shape(image_shape), checks.floating(dtype)
    return pure_model(builder(shape, checks.whole("num_classes", num_classes), kind, **options), shape, kind)


def _find(name: str) -> Builder:
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(str(name), MODELS, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the models are {', '.join(MODELS)}."
    raise ValueError(f"model {name!r} is unknown; {hint}")


def _check_options(name: str, builder: Builder, options: dict[str, Any]) -> None:
    fixed = builder.keywords if isinstance(builder, functools.partial) else {}
    parameters = inspect.signature(builder).parameters.values()
    free = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in fixed]
    for option in options:
        if option in fixed:
            generic = next(other for other, b in MODELS.items() if b is builder.func)  # type: ignore[attr-defined]
            raise TypeError(f"{name} fixes {option}={fixed[option]!r}; build {generic!r} to choose {option}.")
        if option not in free:
            raise TypeError(f"{name} has no option {option!r}; its options are {', '.join(free) or 'none'}.")
