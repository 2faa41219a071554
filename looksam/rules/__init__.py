"""The rules for JAX: pure functions that decide which gradient the base optimizer sees."""

from looksam.rules.core import LookSAMState, Rule, SAMState, StepInfo
from looksam.rules.family import layer_sam, look_layer_sam, look_sam, sam, sam_k
from looksam.rules.parts import accumulated

__all__ = [
    "LookSAMState",
    "Rule",
    "SAMState",
    "StepInfo",
    "accumulated",
    "layer_sam",
    "look_layer_sam",
    "look_sam",
    "sam",
    "sam_k",
]
