"""The rules for JAX: pure functions that decide which gradient the base optimizer sees."""

from looksam.rules.batching import accumulated
from looksam.rules.family import layer_sam, look_layer_sam, look_sam, sam, sam_k
from looksam.rules.rule import LookSAMState, Rule, SAMState, StepInfo

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
