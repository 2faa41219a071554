"""One perturbation for each rank (m-sharpness): every rank climbs its own gradient under DistributedDataParallel."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from looksam.torch.vector import Tensors

PERTURBATIONS = ("global", "rank")


class Ranks:
    """What the ranks of a DistributedDataParallel model do together."""

    def __init__(self, model: nn.Module | None) -> None:
        from torch.nn.parallel import DistributedDataParallel

        inner = getattr(model, "_orig_mod", model)  # torch.compile
        if not isinstance(inner, DistributedDataParallel):
            raise TypeError(
                f"perturbation='rank' needs model= to be a DistributedDataParallel, and it is a {type(model).__name__}."
            )
        self._model: Any = inner

    def apart(self) -> AbstractContextManager[None]:
        """Gradients computed inside, forward pass included, stay those of this rank."""
        return self._model.no_sync()

    def average_(self, tensors: Tensors) -> None:
        """The mean over ranks, in one all-reduce a dtype."""
        import torch.distributed as dist

        group = self._model.process_group
        for dtype in sorted({x.dtype for x in tensors}, key=str):
            same = [x for x in tensors if x.dtype == dtype]
            flat = torch.cat([x.reshape(-1) for x in same])
            dist.all_reduce(flat, group=group)
            flat.div_(dist.get_world_size(group))
            parts = flat.split([x.numel() for x in same])
            torch._foreach_copy_(same, [part.view(x.shape) for part, x in zip(parts, same, strict=True)])

    def agree(self, usable: Tensor, g: Tensors) -> Tensor:
        """Usable on every rank? If not, ``g`` becomes the mean, which all ranks fall back to. Waits for the device."""
        import torch.distributed as dist

        flag = usable.to(torch.float32)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self._model.process_group)
        if flag == 0:
            self.average_(g)
        return flag > 0
