"""Training on many ranks: sums over sharded tensors (DTensor, FSDP2), and one perturbation per rank (m-sharpness)."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from looksam.torch import tensors
from looksam.torch.tensors import Tensors

PLAIN = {Tensor, nn.Parameter}

ProcessGroups = tuple[Any, ...]  # those over which a tensor is split; () for a plain one


def are_plain(xs: Sequence[Tensor]) -> bool:
    """Whether there is certainly no DTensor among them. Fast, as it is called several times per step."""
    return {type(x) for x in xs} <= PLAIN


def is_dtensor(x: Tensor) -> bool:
    """Whether the tensor is a DTensor."""
    return type(x) not in PLAIN and isinstance(x, _dtensor_types())


def local(xs: Sequence[Tensor]) -> Tensors:
    """Returns the shard of each tensor on this rank; it shares memory with the tensor."""
    if are_plain(xs):
        return list(xs)
    return [x.to_local() if is_dtensor(x) else x for x in xs]  # type: ignore[attr-defined]


def _dtensor_types() -> tuple[type, ...]:
    module = sys.modules.get("torch.distributed.tensor")  # if it is not imported, no DTensor exists
    return () if module is None else (module.DTensor,)


@dataclass(frozen=True)
class VectorSpace:
    """The vector space of a list of parameters: the dtype of its scalars, its norms and its dot products.

    Arguments are the shards on this rank. Results are those of the whole tensors: the numbers of all tensors together
    are summed over ranks by one all-reduce.
    """

    dtype: torch.dtype
    shards: tuple[ProcessGroups, ...]  # one entry per tensor

    @staticmethod
    def of(params: Sequence[Tensor]) -> "VectorSpace":
        """Returns the space of these parameters."""
        shards = ((),) * len(params) if are_plain(params) else tuple(_groups(p) for p in params)
        return VectorSpace(tensors.accumulator(params), shards)

    def squares(self, *lists: Tensors) -> Tensor:
        """Returns ‖x‖² of every tensor, one row per list."""
        return self.summed(torch.stack([tensors.squares(xs, self.dtype) for xs in lists]))

    def norm(self, xs: Tensors) -> Tensor:
        """Returns ‖x‖ over the whole vector."""
        squares = tensors.squares(xs if any(self.shards) else tensors.joined(xs), self.dtype)
        return self.summed(squares).sum().sqrt()

    def summed(self, rows: Tensor) -> Tensor:
        """Sums numbers over the ranks that hold a shard; the last dimension has one entry per tensor."""
        return self._reduced(rows, "SUM")

    def largest(self, xs: Tensors) -> Tensor:
        """Returns max |x| of every tensor."""
        return self._reduced(tensors.largest(xs, self.dtype), "MAX")

    def gram(self, xs: Tensors, ys: Tensors) -> Tensor:
        """Returns ‖x‖², ⟨x, y⟩ and ‖y‖² over the whole vectors."""
        sums = []
        for groups, mine in self._kinds():
            part = tensors.gram([xs[i] for i in mine], [ys[i] for i in mine], self.dtype)
            sums.append(_over_ranks(part, groups, "SUM"))
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)

    def _kinds(self) -> list[tuple[ProcessGroups, list[int]]]:
        """Groups the tensors by how they are sharded; in the same order on every rank, and usually one group."""
        kinds = dict.fromkeys(self.shards)
        return [(groups, [i for i, own in enumerate(self.shards) if own == groups]) for groups in kinds]

    def _reduced(self, rows: Tensor, operation: str) -> Tensor:
        if not any(self.shards):
            return rows
        kinds = self._kinds()
        if len(kinds) == 1:
            return _over_ranks(rows.contiguous(), kinds[0][0], operation)
        for groups, mine in kinds:
            rows[..., mine] = _over_ranks(rows[..., mine], groups, operation)
        return rows


def _over_ranks(x: Tensor, groups: ProcessGroups, operation: str) -> Tensor:
    for group in groups:
        import torch.distributed as dist

        dist.all_reduce(x, op=getattr(dist.ReduceOp, operation), group=group)
    return x


def _groups(p: Tensor) -> ProcessGroups:
    """Returns the process groups over which a parameter is split."""
    if not is_dtensor(p):
        return ()
    placements, mesh = p.placements, p.device_mesh  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise ValueError(f"a parameter has placements {placements}; looksam needs Shard or Replicate, not Partial.")
    return tuple(mesh.get_group(i) for i, placement in enumerate(placements) if not placement.is_replicate())


class Ranks:
    """The ranks of a DistributedDataParallel model, where each has a perturbation of its own."""

    def __init__(self, model: nn.Module | None) -> None:
        from torch.nn.parallel import DistributedDataParallel

        inner = getattr(model, "_orig_mod", model)  # torch.compile
        if not isinstance(inner, DistributedDataParallel):
            raise TypeError(
                f"per_rank=True needs model= to be a DistributedDataParallel, and it is a {type(model).__name__}."
            )
        self._model: DistributedDataParallel = inner

    def unsynchronised(self) -> AbstractContextManager[None]:
        """A context in which gradients, forward pass included, stay those of this rank."""
        return self._model.no_sync()

    def average_(self, xs: Tensors) -> None:
        """Replaces the tensors by their mean over ranks, in one all-reduce per dtype."""
        import torch.distributed as dist

        group = self._model.process_group
        for dtype in sorted({x.dtype for x in xs}, key=str):
            same = [x for x in xs if x.dtype == dtype]
            flat = torch.cat([x.reshape(-1) for x in same])
            dist.all_reduce(flat, group=group)
            flat.div_(dist.get_world_size(group))
            parts = flat.split([x.numel() for x in same])
            torch._foreach_copy_(same, [part.view(x.shape) for part, x in zip(parts, same, strict=True)])

    def agree(self, usable: Tensor, g: Tensors) -> Tensor:
        """Returns whether all ranks have a usable gradient; if not, ``g`` becomes the mean. Waits for the device."""
        import torch.distributed as dist

        flag = usable.to(torch.float32)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self._model.process_group)
        if flag == 0:
            self.average_(g)
        return flag > 0
