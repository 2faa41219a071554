"""The rules for PyTorch: wrappers that decide which gradient an existing optimizer sees. docs/pytorch.md is the guide.

The files, from the bottom up; each imports only those before it, and none imports JAX:

    tensors        norms, dot products and sums over a list of tensors
    sharding       the same over the shards of all ranks, and one perturbation per rank
    perturbations  the equations of the perturbation
    formulas       the equations of the refresh step and the reuse step
    buffers        the model's buffers around the two passes
    replay         the random state as well
    scaling        the gradient scaler of fp16
    saved_weights  the weights at w, while the parameters are at w + ε
    phase          where the current step is
    state          what is carried from step to step
    param_groups   the base optimizer's groups: checks, gradients, names, ρ and α
    guards         gradients that a closure would clear, and names of other libraries
    parts          the choices of which a rule is composed
    passes         perturb the weights, put them back, adjust the gradients
    momentum       the same for MSAM, which has one pass
    compose        the passes of a rule from its choices
    optimizer      the wrapper that all rules share
    sam_variants   ASAM, GSAM and MSAM
    sam_family     the paper's five rules, and the table of all; a new rule is a class there
    frameworks     what the next three share: the micro-batches of a step, and numbers for loggers
    vision_models  the trainer's models as modules
    exported       a trained model that `looksam export` wrote
    lightning, accelerate, transformers
                   the rules in these frameworks; imported only by those who use them
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "looksam.torch needs torch, which is not installed: pip install 'looksam[torch]'", name="torch"
    ) from error

from looksam.schedule import every
from looksam.torch.exported import ExportedModel, load_exported
from looksam.torch.formulas import StepInfo
from looksam.torch.optimizer import SharpnessAware
from looksam.torch.parts import (
    Perturbation,
    elementwise_perturbation,
    global_perturbation,
    gsam_gradient,
    layerwise_perturbation,
    momentum_perturbation,
    plain_gradient,
    reused_g_v,
    sam_gradient,
)
from looksam.torch.sam_family import SAM, LayerSAM, LookLayerSAM, LookSAM, SAMk
from looksam.torch.sam_variants import ASAM, GSAM, MSAM

__all__ = [  # noqa: RUF022 (plainly sorted)
    "ASAM",
    "ExportedModel",
    "GSAM",
    "LayerSAM",
    "LookLayerSAM",
    "LookSAM",
    "MSAM",
    "Perturbation",
    "SAM",
    "SAMk",
    "SharpnessAware",
    "StepInfo",
    "elementwise_perturbation",
    "every",
    "global_perturbation",
    "gsam_gradient",
    "layerwise_perturbation",
    "load_exported",
    "momentum_perturbation",
    "plain_gradient",
    "reused_g_v",
    "sam_gradient",
]
