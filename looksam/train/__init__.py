"""The trainer: a recipe in, a trained model and its metrics out."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looksam.train.errors import RunError
    from looksam.train.loop import evaluate_run, run
    from looksam.train.recipe import Recipe

__all__ = ["Recipe", "RunError", "evaluate_run", "run"]

_HOMES = {"Recipe": "recipe", "RunError": "errors", "evaluate_run": "loop", "run": "loop"}


def __getattr__(name: str) -> Any:
    """Loaded on first use, so that the command line can show its help without loading JAX."""
    if name not in _HOMES:
        raise AttributeError(f"module 'looksam.train' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"looksam.train.{_HOMES[name]}"), name)
