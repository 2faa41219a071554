"""The trainer: turns a recipe into a trained model, its metrics and its checkpoints.

A batch passes through ``batches`` (which images, on which device), ``step`` (augmentation, loss, one training step),
``parallel`` (its gradient over all devices), the rule and the optimizer (``optimizers``). ``training`` compiles these,
and ``loop`` runs them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looksam.trainer.loop import evaluate_run, run
    from looksam.trainer.recipe import Recipe
    from looksam.trainer.run_directory import RunError

__all__ = ["Recipe", "RunError", "evaluate_run", "run"]

_MODULES = {"Recipe": "recipe", "RunError": "run_directory", "evaluate_run": "loop", "run": "loop"}


def __getattr__(name: str) -> Any:
    """Load a name on first use, so that the command line can show its help without loading JAX."""
    if name not in _MODULES:
        raise AttributeError(f"module 'looksam.trainer' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"looksam.trainer.{_MODULES[name]}"), name)
