"""Sharpness-aware training at the cost of plain training.

The names below are for JAX and load on first use, so that ``import looksam`` needs no framework. ``looksam.torch`` has
the same rules for PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from looksam.methods import METHODS

if TYPE_CHECKING:
    from looksam.convolution import conv_general_dilated as conv_general_dilated
    from looksam.flax_layers import Conv as Conv
    from looksam.flax_training import NNXRule as NNXRule
    from looksam.flax_training import TrainState as TrainState
    from looksam.optax_adapter import as_optimizer as as_optimizer
    from looksam.rules import Rule as Rule
    from looksam.rules import StepInfo as StepInfo
    from looksam.rules import accumulated as accumulated
    from looksam.rules.family import *  # noqa: F403

__version__ = "0.1.0"

_RULES = (method.name for method in METHODS.values() if method.is_rule)
_MODULES = {  # of the public names that are not in looksam.rules
    "Conv": "looksam.flax_layers",
    "NNXRule": "looksam.flax_training",
    "TrainState": "looksam.flax_training",
    "as_optimizer": "looksam.optax_adapter",
    "conv_general_dilated": "looksam.convolution",
}
__all__ = sorted([*_MODULES, "Rule", "StepInfo", "accumulated", *_RULES])


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'looksam' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(importlib.import_module(_MODULES.get(name, "looksam.rules")), name)
    except ModuleNotFoundError as error:
        extra = {"jax": "jax", "jaxlib": "jax", "optax": "jax", "flax": "train"}.get(error.name or "")
        if extra is None:
            raise
        raise ImportError(
            f"looksam.{name} needs {error.name}, which is not installed: pip install 'looksam[{extra}]'",
            name=error.name,
        ) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
