"""fp16 with a gradient scaler.

A scaler keeps one record of overflow for each optimizer it unscales, and refuses a second call until its update. The
wrapper and its base are two optimizers over the same parameters: the clean pass is recorded under the base, which the
scaler then steps or skips, and the second pass under the wrapper, so that an overflow there lowers the scale too.
"""

from typing import Any

import torch

from looksam.torch.sharding import Space
from looksam.torch.vector import Tensors

Scaler = Any  # torch.amp.GradScaler, or what has its methods


def enabled(scaler: Scaler | None) -> Scaler | None:
    return scaler if scaler is not None and scaler.is_enabled() else None


def overflowed(g: Tensors, space: Space) -> bool:
    """Is any entry not finite? Waits for the device, as the scaler itself does on every step."""
    if torch.isfinite(space.norm(g)):
        return False
    bad = torch.stack([(~torch.isfinite(x)).sum().to(g[0].device, space.dtype) for x in g])
    return bool(space.summed(bad).sum() > 0)
