"""A list of tensors, read as one long vector.

Every norm and dot product of the rules is taken here, in float32 or wider. The tensors are plain ones: of a DTensor,
the part on this rank (sharding.py adds the parts up).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

Tensors = list[Tensor] | tuple[Tensor, ...]  # what the foreach functions take and give

# On a CPU, PyTorch's norms and dots add up long tensors naively in float32: twelve million entries come out 1e-3
# wrong. Longer tensors than this are taken in pieces, which costs no time and leaves 1e-7.
PIECE = 65_536
ROW = 4_096
CACHED = 16_384  # wide copies of narrow tensors are made in pieces of this size


def accumulator(tensors: Sequence[Tensor]) -> torch.dtype:
    """The dtype in which norms accumulate: float32, or float64 if any tensor has it."""
    return torch.float64 if torch.float64 in {x.dtype for x in tensors} else torch.float32


def squares(xs: Tensors, dtype: torch.dtype) -> Tensor:
    """‖x‖² of each tensor, as one 1-D tensor."""
    short = [_shortened(x, dtype) if x.numel() > PIECE else x for x in xs]
    return _stacked(torch._foreach_norm(short, 2.0, dtype)).square()


def dots(xs: Tensors, ys: Tensors, dtype: torch.dtype) -> Tensor:
    """⟨x, y⟩ of each pair, as one 1-D tensor."""
    return _stacked([_products([pair])[1] for pair in _flat_pairs(cast(xs, dtype), cast(ys, dtype))])


def gram(xs: Tensors, ys: Tensors, dtype: torch.dtype) -> Tensor:
    """‖x‖², ⟨x, y⟩ and ‖y‖² over all tensors together; by one routine, so that x = y gives one number three times."""
    pairs = _flat_pairs(joined(cast(xs, dtype)), joined(cast(ys, dtype)))
    if len({x.device for x in xs}) > 1:
        return _stacked([_products([pair]) for pair in pairs]).sum(0)
    return _products(pairs)


def joined(xs: Tensors) -> Tensors:
    """The same vector in fewer tensors: biases and such become one, as a call for each costs more than the copy."""
    short = [x for x in xs if x.numel() <= ROW]
    if len(short) < 2 or len({(x.dtype, x.device) for x in xs}) > 1:
        return xs
    return [_flatten_dense_tensors(short), *(x for x in xs if x.numel() > ROW)]


def largest(xs: Tensors, dtype: torch.dtype) -> Tensor:
    """Max |x| of each tensor, 0 for an empty one."""
    tops = [x.abs().amax() if x.numel() else x.new_zeros(()) for x in xs]
    return _stacked([top.to(dtype) for top in tops])


def add_scaled_(xs: Tensors, factors: Tensors, ys: Tensors, dtype: torch.dtype) -> None:
    """``x += factor * y``, with a 0-dim factor for each tensor; computed in ``dtype``, then rounded to x's."""
    factors = _beside(factors, xs)
    if not (all_of(dtype, xs) and all_of(dtype, ys)):
        factors, xs, ys = _mixed(factors, xs, ys)
    torch._foreach_addcmul_(xs, ys, factors)


def cast(xs: Tensors, dtype: torch.dtype) -> Tensors:
    """The tensors in ``dtype``; those that have it are not copied."""
    return xs if all_of(dtype, xs) else [x.to(dtype) for x in xs]


def all_of(dtype: torch.dtype, xs: Tensors) -> bool:
    return {x.dtype for x in xs} == {dtype}


def copies(xs: Tensors) -> Tensors:
    if xs and hasattr(torch, "_foreach_clone"):  # newer than the oldest PyTorch that will do
        return torch._foreach_clone(xs)
    return [x.clone() for x in xs]


def choose_(condition: Tensor, xs: Tensors, ys: Tensors) -> None:
    """Keep each x where the condition holds, or else overwrite it with y."""
    if on_host(condition):
        if not condition:
            torch._foreach_copy_(xs, ys)
        return
    for x, y in zip(xs, ys, strict=True):  # on refresh steps only; no sync
        torch.where(condition.to(x.device, non_blocking=True), x, y.to(x.dtype), out=x)


def zero_unless_(condition: Tensor, xs: Tensors) -> None:
    """Overwrite with 0 unless the condition holds; NaN and infinity too."""
    if on_host(condition):
        if not condition:
            torch._foreach_zero_(xs)
        return
    for x in xs:
        x.masked_fill_(~condition.to(x.device, non_blocking=True), 0)


def on_host(x: Tensor) -> bool:
    """Can Python read it without waiting for a device?"""
    return x.device.type == "cpu"


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and 0 where the denominator is 0 (a vector of norm 0 has no direction)."""
    return torch.where(denominator > 0, numerator / denominator, 0)


def finite(size: Tensor) -> Tensor:
    """Is it, for a size >= 0? One operation on a scalar, where ``torch.isfinite`` takes four."""
    return size < math.inf  # NaN is not


def add_into(into: Tensors, xs: Tensors, factor: Tensor, ys: Tensors, dtype: torch.dtype) -> None:
    """``x + factor * y`` written to ``into``; computed in ``dtype``, then rounded. On refresh steps only."""
    factors = _beside([factor] * len(xs), xs)
    if not (all_of(dtype, into) and all_of(dtype, xs) and all_of(dtype, ys)):
        factors, into, xs, ys = _mixed(factors, into, xs, ys)
    for f, out, x, y in zip(factors, into, xs, ys, strict=True):  # foreach has no out=
        torch.addcmul(x, y, f, out=out)


def _mixed(factors: Tensors, *lists: Tensors) -> list[list[Tensor]]:
    """The same lists, such that PyTorch computes in the factor's dtype whatever those of the tensors are.

    It does so by itself if the factor has a dimension, as they have. On a CPU it then makes copies in that dtype, so
    long tensors come in pieces, whose copies stay in the cache.
    """
    rows: list[tuple[Tensor, ...]] = []
    for factor, *xs in zip(factors, *lists, strict=True):
        f = factor.view(1) if xs[0].ndim else factor
        whole = not on_host(f) or xs[0].numel() <= CACHED or not all(x.is_contiguous() for x in xs)
        pieces = [xs] if whole else zip(*(x.view(-1).split(CACHED) for x in xs), strict=True)
        rows += [(f, *piece) for piece in pieces]
    return [list(column) for column in zip(*rows, strict=True)]


def _beside(scalars: Tensors, xs: Tensors) -> Tensors:
    """Each scalar on the device of its tensor."""
    if len({x.device for x in xs} | {scalars[0].device}) == 1:
        return scalars
    return [scalar.to(x.device, non_blocking=True) for scalar, x in zip(scalars, xs, strict=True)]


def _stacked(scalars: Sequence[Tensor]) -> Tensor:
    if len({x.device for x in scalars}) > 1:
        scalars = [x.to(scalars[0].device, non_blocking=True) for x in scalars]
    return torch.stack(list(scalars))


def _shortened(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of the same 2-norm as a long one, short enough for an exact sum: the norms of its rows."""
    if not on_host(x):
        return x
    (flat,) = _flat(x)
    if x.dtype != dtype:
        return torch.stack([torch.linalg.vector_norm(piece.to(dtype)) for piece in flat.split(CACHED)])
    whole = flat.numel() // ROW * ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1, dtype=dtype)
    return rows if whole == flat.numel() else torch.cat([rows, flat[whole:].to(dtype)])


def _products(pairs: list[list[Tensor]]) -> Tensor:
    """‖x‖², ⟨x, y⟩ and ‖y‖² over all pairs. On a CPU, each piece is read from memory once for all three."""
    if on_host(pairs[0][0]):
        pairs = [piece for pair in pairs for piece in (_split(*pair) if pair[0].numel() > PIECE else [pair])]
    return torch.stack([torch.dot(*two) for x, y in pairs for two in ((x, x), (x, y), (y, y))]).view(-1, 3).sum(0)


def _split(x: Tensor, y: Tensor) -> list[list[Tensor]]:
    return [[a, b] for a, b in zip(x.split(PIECE), y.split(PIECE), strict=True)]


def _flat_pairs(xs: Tensors, ys: Tensors) -> list[list[Tensor]]:
    return [_flat(x, y) for x, y in zip(xs, ys, strict=True)]


def _flat(*xs: Tensor) -> list[Tensor]:
    """The tensors in one dimension and one common order; views, where they share a dense layout."""
    if all(x.is_contiguous() for x in xs):
        return [x.flatten() for x in xs]
    order = sorted(range(xs[0].ndim), key=xs[0].stride().__getitem__, reverse=True)
    return [x.permute(order).reshape(-1) for x in xs]
