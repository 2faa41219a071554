"""Norms, dot products and sums over a list of tensors, read as one long vector.

Every norm and dot product of the rules is computed here, in float32 or wider. The tensors are plain ones: for a
DTensor, they are its shards on this rank, and sharding.py adds up the results over ranks.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

Tensors = list[Tensor] | tuple[Tensor, ...]  # what the foreach functions accept and return

# On a CPU, PyTorch sums long tensors naively in float32: the norm of twelve million entries has an error of 1e-3.
# Tensors longer than this are summed in pieces, which costs no time and leaves an error of 1e-7.
PIECE = 65_536
ROW = 4_096  # entries per row where a norm is computed in rows, and the limit below which tensors are joined
CACHED = 16_384  # wide copies of narrow tensors are made in pieces of this size


def accumulator(tensors: Sequence[Tensor]) -> torch.dtype:
    """The dtype in which norms accumulate: float32, or float64 if any tensor has it."""
    return torch.float64 if torch.float64 in {x.dtype for x in tensors} else torch.float32


def squares(xs: Tensors, dtype: torch.dtype) -> Tensor:
    """Returns ‖x‖² of each tensor, as one 1-D tensor."""
    short = [_shortened(x, dtype) if x.numel() > PIECE else x for x in xs]
    return _stacked(torch._foreach_norm(short, 2.0, dtype)).square()


def dots(xs: Tensors, ys: Tensors, dtype: torch.dtype) -> Tensor:
    """Returns ⟨x, y⟩ of each pair, as one 1-D tensor."""
    return _stacked([_products([pair])[1] for pair in _flat_pairs(cast(xs, dtype), cast(ys, dtype))])


def gram(xs: Tensors, ys: Tensors, dtype: torch.dtype) -> Tensor:
    """Returns ‖x‖², ⟨x, y⟩ and ‖y‖² over all tensors; by one routine, so that x = y gives three equal numbers."""
    pairs = _flat_pairs(joined(cast(xs, dtype)), joined(cast(ys, dtype)))
    if len({x.device for x in xs}) > 1:
        return _stacked([_products([pair]) for pair in pairs]).sum(0)
    return _products(pairs)


def joined(xs: Tensors) -> Tensors:
    """Returns the same vector in fewer tensors: short ones are joined, as a call for each costs more than a copy."""
    short = [x for x in xs if x.numel() <= ROW]
    if len(short) < 2 or len({(x.dtype, x.device) for x in xs}) > 1:
        return xs
    return [_flatten_dense_tensors(short), *(x for x in xs if x.numel() > ROW)]


def largest(xs: Tensors, dtype: torch.dtype) -> Tensor:
    """Returns max |x| of each tensor, 0 for an empty one."""
    maxima = [x.abs().amax() if x.numel() else x.new_zeros(()) for x in xs]
    return _stacked([x.to(dtype) for x in maxima])


def add_scaled_(xs: Tensors, factors: Tensors, ys: Tensors, dtype: torch.dtype) -> None:
    """Adds ``factor * y`` to each x, with 0-dim factors; computed in ``dtype``, then rounded to the dtype of x."""
    factors = _on_devices_of(factors, xs)
    if not (all_of(dtype, xs) and all_of(dtype, ys)):
        factors, xs, ys = _mixed(factors, xs, ys)
    torch._foreach_addcmul_(xs, ys, factors)


def scale_(xs: Tensors, factor: Tensor) -> None:
    """Multiplies each x by a 0-dim factor; on a CPU, a factor of 1 costs nothing."""
    if not xs or (on_host(factor) and factor == 1):
        return
    for device in {x.device for x in xs}:
        torch._foreach_mul_([x for x in xs if x.device == device], factor.to(device, non_blocking=True))


def cast(xs: Tensors, dtype: torch.dtype) -> Tensors:
    """Returns the tensors in ``dtype``; those that already have it are not copied."""
    return xs if all_of(dtype, xs) else [x.to(dtype) for x in xs]


def all_of(dtype: torch.dtype, xs: Tensors) -> bool:
    """Whether every tensor has this dtype."""
    return {x.dtype for x in xs} == {dtype}


def copies(xs: Tensors) -> Tensors:
    """Returns a clone of each tensor."""
    if xs and hasattr(torch, "_foreach_clone"):  # private to PyTorch, so not relied upon
        return torch._foreach_clone(xs)
    return [x.clone() for x in xs]


def choose_(condition: Tensor, xs: Tensors, ys: Tensors) -> None:
    """Overwrites each x with y unless the condition holds."""
    if on_host(condition):
        if not condition:
            torch._foreach_copy_(xs, ys)
        return
    for x, y in zip(xs, ys, strict=True):  # on refresh steps only; does not wait for the device
        torch.where(condition.to(x.device, non_blocking=True), x, y.to(x.dtype), out=x)


def zero_unless_(condition: Tensor, xs: Tensors) -> None:
    """Overwrites each x with 0 unless the condition holds, also where it is NaN or infinite."""
    if on_host(condition):
        if not condition:
            torch._foreach_zero_(xs)
        return
    for x in xs:
        x.masked_fill_(~condition.to(x.device, non_blocking=True), 0)


def on_host(x: Tensor) -> bool:
    """Whether Python can read the value without waiting for a device."""
    return x.device.type == "cpu"


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Returns ``numerator / denominator``, and 0 where the denominator is 0 (a vector of norm 0 has no direction)."""
    return torch.where(denominator > 0, numerator / denominator, 0)


def finite(size: Tensor) -> Tensor:
    """Whether a size >= 0 is finite; one operation, where ``torch.isfinite`` takes four."""
    return size < math.inf  # NaN is not


def add_into(into: Tensors, xs: Tensors, factor: Tensor, ys: Tensors, dtype: torch.dtype) -> None:
    """Writes ``x + factor * y`` to ``into``, which may be y; computed in ``dtype``, then rounded."""
    factors = _on_devices_of([factor] * len(xs), xs)
    if not (all_of(dtype, into) and all_of(dtype, xs) and all_of(dtype, ys)):
        factors, into, xs, ys = _mixed(factors, into, xs, ys)
    for f, out, x, y in zip(factors, into, xs, ys, strict=True):  # foreach has no out=
        torch.addcmul(x, y, f, out=out)


def accumulate_(condition: Tensor, xs: Tensors, factor: Tensor, ys: Tensors, dtype: torch.dtype) -> None:
    """Sets each x to ``factor * x + y`` where the condition holds; computed in ``dtype``, then rounded."""
    if not on_host(condition):
        sums = [torch.empty_like(x) for x in xs]
        add_into(sums, ys, factor, xs, dtype)
        choose_(~condition, xs, sums)
    elif condition:
        add_into(xs, ys, factor, xs, dtype)


def _mixed(factors: Tensors, *lists: Tensors) -> list[list[Tensor]]:
    """Returns the lists in a form for which PyTorch computes in the factors' dtype, whatever the tensors' dtypes are.

    Type promotion does so where the factor has a dimension, as the tensors have. On a CPU PyTorch then makes copies in
    that dtype, so long tensors are split into pieces whose copies stay in the cache.
    """
    rows: list[tuple[Tensor, ...]] = []
    for factor, *xs in zip(factors, *lists, strict=True):
        f = factor.view(1) if xs[0].ndim else factor
        whole = not on_host(f) or xs[0].numel() <= CACHED or not all(x.is_contiguous() for x in xs)
        pieces = [xs] if whole else zip(*(x.view(-1).split(CACHED) for x in xs), strict=True)
        rows += [(f, *piece) for piece in pieces]
    return [list(column) for column in zip(*rows, strict=True)]


def _on_devices_of(scalars: Tensors, xs: Tensors) -> Tensors:
    """Returns each scalar on the device of its tensor."""
    if len({x.device for x in xs} | {scalars[0].device}) == 1:
        return scalars
    return [scalar.to(x.device, non_blocking=True) for scalar, x in zip(scalars, xs, strict=True)]


def _stacked(scalars: Sequence[Tensor]) -> Tensor:
    """Returns the scalars as one tensor, on the device of the first."""
    if len({x.device for x in scalars}) > 1:
        scalars = [x.to(scalars[0].device, non_blocking=True) for x in scalars]
    return torch.stack(list(scalars))


def _shortened(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the norms of the rows of a long tensor: the 2-norm is the same, and short enough to sum exactly."""
    if not on_host(x):
        return x
    (flat,) = _flat(x)
    if x.dtype != dtype:
        return torch.stack([torch.linalg.vector_norm(piece.to(dtype)) for piece in flat.split(CACHED)])
    whole = flat.numel() // ROW * ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1, dtype=dtype)
    return rows if whole == flat.numel() else torch.cat([rows, flat[whole:].to(dtype)])


def _products(pairs: list[list[Tensor]]) -> Tensor:
    """Returns ‖x‖², ⟨x, y⟩ and ‖y‖² over all pairs. On a CPU each piece is read from memory once for all three."""
    if on_host(pairs[0][0]):
        pairs = [piece for pair in pairs for piece in (_split(*pair) if pair[0].numel() > PIECE else [pair])]
    products = [torch.dot(a, b) for x, y in pairs for a, b in ((x, x), (x, y), (y, y))]
    return torch.stack(products).view(-1, 3).sum(0)


def _split(x: Tensor, y: Tensor) -> list[list[Tensor]]:
    return [[a, b] for a, b in zip(x.split(PIECE), y.split(PIECE), strict=True)]


def _flat_pairs(xs: Tensors, ys: Tensors) -> list[list[Tensor]]:
    return [_flat(x, y) for x, y in zip(xs, ys, strict=True)]


def _flat(*xs: Tensor) -> list[Tensor]:
    """Returns the tensors in one dimension and one common order; views where they share a dense layout."""
    if all(x.is_contiguous() for x in xs):
        return [x.flatten() for x in xs]
    order = sorted(range(xs[0].ndim), key=xs[0].stride().__getitem__, reverse=True)
    return [x.permute(order).reshape(-1) for x in xs]
