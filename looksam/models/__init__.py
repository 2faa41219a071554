"""The models, as pure functions of nested dicts: ``build_model(name, ...)`` gives ``init`` and ``apply``."""

from looksam.models.pure import Model, Params, Stats
from looksam.models.registry import MODELS, build_model

__all__ = ["MODELS", "Model", "Params", "Stats", "build_model"]
