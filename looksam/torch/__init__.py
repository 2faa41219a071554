"""The rules for PyTorch: wrappers that decide which gradient an existing optimizer sees. docs/pytorch.md is the guide.

The files, from the bottom up; each imports only those before it, and none imports JAX:

    tensors       norms, dot products and sums over a list of tensors
    sharding      the same over the shards of all ranks, and one perturbation per rank
    formulas      the equations: the perturbation, the refresh step, the reuse step
    replay        random state, buffers and the gradient scaler around the two passes
    phase         where the current step is, and what is carried from step to step
    param_groups  the base optimizer's groups: checks, gradients, names, ρ and α
    passes        perturb the weights, put them back, adjust the gradients
    optimizer     the wrapper that all rules share
    sam_family    the five rules; a new rule is a class there, with its equations in formulas
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "looksam.torch needs torch, which is not installed: pip install 'looksam[torch]'", name="torch"
    ) from error

from looksam.torch.formulas import StepInfo
from looksam.torch.optimizer import SharpnessAware
from looksam.torch.sam_family import SAM, LayerSAM, LookLayerSAM, LookSAM, SAMk

__all__ = [  # noqa: RUF022 (plainly sorted)
    "LayerSAM",
    "LookLayerSAM",
    "LookSAM",
    "SAM",
    "SAMk",
    "SharpnessAware",
    "StepInfo",
]
