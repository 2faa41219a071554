"""The rules for JAX: pure functions that choose the gradient that the base optimizer sees."""

from looksam.rules import family
from looksam.rules.batching import accumulated
from looksam.rules.family import *  # noqa: F403
from looksam.rules.rule import Rule
from looksam.rules.steps import LookSAMState, SAMState, StepInfo

__all__ = ["LookSAMState", "Rule", "SAMState", "StepInfo", "accumulated"]
__all__ += family.__all__
