"""Sharpness-aware training at the cost of plain training.

The names below are for JAX and load on first use, so that ``import looksam`` needs no framework. ``looksam.torch`` has
the same rules for PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from looksam.methods import METHODS

if TYPE_CHECKING:
    from looksam.optax_adapter import as_optimizer as as_optimizer
    from looksam.rules import Rule as Rule
    from looksam.rules import StepInfo as StepInfo
    from looksam.rules import accumulated as accumulated
    from looksam.rules.family import *  # noqa: F403

__version__ = "0.1.0"

_RULES = (method.name for method in METHODS.values() if method.is_rule)
__all__ = sorted(["Rule", "StepInfo", "accumulated", "as_optimizer", *_RULES])


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'looksam' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = "looksam.optax_adapter" if name == "as_optimizer" else "looksam.rules"
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name not in ("jax", "jaxlib", "optax"):
            raise
        raise ImportError(
            f"looksam.{name} needs {error.name}, which is not installed: pip install 'looksam[jax]'",
            name=error.name,
        ) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
