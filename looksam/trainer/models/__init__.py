"""The models, as pure functions of nested dicts: ``build_model(name, ...)`` gives ``init`` and ``apply``."""

from looksam.trainer.models.functional import Model, Params, Stats
from looksam.trainer.models.registry import MODELS, build_model

__all__ = ["MODELS", "Model", "Params", "Stats", "build_model"]
