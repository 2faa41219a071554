"""Tensors sharded over ranks (DTensor, FSDP2): a rank works on its part, and sums are added up over ranks."""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from looksam.torch import vector
from looksam.torch.vector import Tensors

PLAIN = {Tensor, nn.Parameter}


def are_plain(tensors: Sequence[Tensor]) -> bool:
    """Surely no DTensor among them? Quick, as it is asked several times a step."""
    return {type(x) for x in tensors} <= PLAIN


def is_dtensor(x: Tensor) -> bool:
    return type(x) not in PLAIN and isinstance(x, _dtensor_types())


def local(tensors: Sequence[Tensor]) -> Tensors:
    """The part of each tensor that is on this rank; shares its memory."""
    if are_plain(tensors):
        return list(tensors)
    return [x.to_local() if is_dtensor(x) else x for x in tensors]  # type: ignore[attr-defined]


def _dtensor_types() -> tuple[type, ...]:
    module = sys.modules.get("torch.distributed.tensor")  # before its import there is no DTensor
    return () if module is None else (module.DTensor,)


@dataclass(frozen=True)
class Space:
    """Where a list of parameters lives: the dtype of its scalars, and what each tensor is sharded over.

    Its sums are those of whole tensors, by one all-reduce for all tensors together.
    """

    dtype: torch.dtype
    shards: tuple[tuple[Any, ...], ...]  # the process groups over which each tensor is split; () for a plain one

    @staticmethod
    def of(params: Sequence[Tensor]) -> "Space":
        shards = ((),) * len(params) if are_plain(params) else tuple(_groups(p) for p in params)
        return Space(vector.accumulator(params), shards)

    def squares(self, *lists: Tensors) -> Tensor:
        """‖x‖² of every tensor: one row for each list."""
        return self.summed(torch.stack([vector.squares(xs, self.dtype) for xs in lists]))

    def norm(self, xs: Tensors) -> Tensor:
        """‖x‖ over the whole vector."""
        squares = vector.squares(xs if any(self.shards) else vector.joined(xs), self.dtype)
        return self.summed(squares).sum().sqrt()

    def summed(self, rows: Tensor) -> Tensor:
        """Numbers by tensor in the last dimension, added up over the ranks that hold parts of the tensor."""
        return self._reduced(rows, "SUM")

    def largest(self, xs: Tensors) -> Tensor:
        """Max |x| of every tensor."""
        return self._reduced(vector.largest(xs, self.dtype), "MAX")

    def gram(self, xs: Tensors, ys: Tensors) -> Tensor:
        """‖x‖², ⟨x, y⟩ and ‖y‖² over the whole vectors."""
        sums = []
        for groups, mine in self._kinds():
            part = vector.gram([xs[i] for i in mine], [ys[i] for i in mine], self.dtype)
            sums.append(_over_ranks(part, groups, "SUM"))
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)

    def _kinds(self) -> list[tuple[tuple[Any, ...], list[int]]]:
        """The tensors by what they are sharded over; in the same order on every rank, and most often one kind."""
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


def _over_ranks(x: Tensor, groups: tuple[Any, ...], operation: str) -> Tensor:
    for group in groups:
        import torch.distributed as dist

        dist.all_reduce(x, op=getattr(dist.ReduceOp, operation), group=group)
    return x


def _groups(p: Tensor) -> tuple[Hashable, ...]:
    if not is_dtensor(p):
        return ()
    placements, mesh = p.placements, p.device_mesh  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise ValueError(f"a parameter has placements {placements}; looksam needs Shard or Replicate, not Partial.")
    return tuple(mesh.get_group(i) for i, placement in enumerate(placements) if not placement.is_replicate())
