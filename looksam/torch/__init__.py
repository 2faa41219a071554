"""The rules for PyTorch: wrappers that decide which gradient an existing optimizer sees. docs/pytorch.md is the guide.

Nothing here imports JAX.
"""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "looksam.torch needs torch, which is not installed: pip install 'looksam[torch]'", name="torch"
    ) from error

from looksam.torch.family import SAM, LayerSAM, LookLayerSAM, LookSAM, SAMk
from looksam.torch.optimizer import SharpnessAware
from looksam.torch.rule import StepInfo

__all__ = [  # noqa: RUF022 (plainly sorted)
    "LayerSAM",
    "LookLayerSAM",
    "LookSAM",
    "SAM",
    "SAMk",
    "SharpnessAware",
    "StepInfo",
]
