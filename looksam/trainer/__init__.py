"""The trainer: a recipe in, a trained model and its metrics out."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looksam.trainer.loop import run
    from looksam.trainer.recipe import Recipe
    from looksam.trainer.run_folder.run_directory import RunError
    from looksam.trainer.trained.evaluation import evaluate_run
    from looksam.trainer.trained.exporting import export_run
    from looksam.trainer.trained.prediction import predict_run
    from looksam.trainer.trained.run_analysis import analyze_run
    from looksam.trainer.trained.trained_model import load_model

__all__ = [
    "Recipe",
    "RunError",
    "analyze_run",
    "evaluate_run",
    "export_run",
    "load_model",
    "predict_run",
    "run",
]

_MODULES = {
    "Recipe": "recipe",
    "RunError": "run_folder.run_directory",
    "analyze_run": "trained.run_analysis",
    "evaluate_run": "trained.evaluation",
    "export_run": "trained.exporting",
    "load_model": "trained.trained_model",
    "predict_run": "trained.prediction",
    "run": "loop",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use, so that the command line can show its help without importing JAX."""
    if name not in _MODULES:
        raise AttributeError(f"module 'looksam.trainer' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"looksam.trainer.{_MODULES[name]}"), name)
