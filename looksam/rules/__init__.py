"""The rules for JAX: pure functions that choose the gradient that the base optimizer sees.

The named rules are in ``family.py``. ``compose`` makes others from the same four choices: a perturbation, a schedule
from ``every``, what a refresh returns, and what the steps between two refreshes do.
"""

from looksam.rules import family
from looksam.rules.batching import accumulated
from looksam.rules.choices import (
    BetweenGradient,
    RefreshGradient,
    gsam_gradient,
    plain_gradient,
    reused_g_v,
    sam_gradient,
)
from looksam.rules.composition import compose
from looksam.rules.family import *  # noqa: F403
from looksam.rules.momentum_rule import MomentumState, momentum_perturbation
from looksam.rules.perturbation import elementwise_perturbation, global_perturbation, layerwise_perturbation
from looksam.rules.rule import Rule
from looksam.rules.steps import GradientProducts, LookSAMState, SAMState, StepInfo
from looksam.schedule import every

__all__ = [
    "BetweenGradient",
    "GradientProducts",
    "LookSAMState",
    "MomentumState",
    "RefreshGradient",
    "Rule",
    "SAMState",
    "StepInfo",
    "accumulated",
    "compose",
    "elementwise_perturbation",
    "every",
    "global_perturbation",
    "gsam_gradient",
    "layerwise_perturbation",
    "momentum_perturbation",
    "plain_gradient",
    "reused_g_v",
    "sam_gradient",
]
__all__ += family.__all__
