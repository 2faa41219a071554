"""The perturbations ε of docs/maths.md on lists of tensors, as unit vectors ε/ρ made from the clean gradient.

A new one is a function like ``over_all``; it works on the shards of this rank, takes its norms from ``space``, and gets
a factory in parts.py. The momentum perturbation needs no gradient: it is in momentum.py.
"""

import functools
import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from looksam.torch import tensors
from looksam.torch.sharding import VectorSpace
from looksam.torch.tensors import Tensors, divide

# What a perturbation knows about each tensor by its name, such as its layer; None if it asked for nothing.
Labels = list[Hashable] | None
# (g, w, labels, space) → one direction per tensor and one factor per tensor, where ε/ρ is factor · direction. In
# global and layer-wise ones with p = 2 the directions are the gradients themselves, so that nothing is written.
UnitPerturbation = Callable[[Tensors, Tensors, Labels, VectorSpace], tuple[Tensors, Tensor]]


def over_all(p: float, g: Tensors, w: Tensors, labels: Labels, space: VectorSpace) -> tuple[Tensors, Tensor]:
    """Returns SAM's ε/ρ: the unit vector of the p-norm of steepest ascent, over all parameters."""
    del w, labels
    unit = _steepest(g, p, space)
    return unit.directions, unit.factors


def by_layer(
    p: float, scaling: str, g: Tensors, w: Tensors, layers: Labels, space: VectorSpace
) -> tuple[Tensors, Tensor]:
    """Returns LayerSAM's ε/ρ: the perturbation of each layer is scaled by the norm of the layer's weights."""
    squares = space.squares(w, g)
    weight_norms, g_norms = _layer_norms(squares, layers)  # T and ‖g_i‖
    if scaling == "adaptive":
        unit = _steepest(g, p, space, weight_norms, squares[1])
        return unit.directions, weight_norms * unit.factors  # (6)
    unit = _steepest(g, p, space, squares=squares[1])
    ratios = divide(weight_norms, g_norms)  # Λ, 0 where g_i = 0
    if scaling == "literal":
        return unit.directions, ratios * unit.factors  # (5)
    length = torch.linalg.vector_norm(ratios * unit.sizes, p)
    return unit.directions, divide(ratios, length)  # (4)


def by_element(
    p: float, eta: float, g: Tensors, w: Tensors, scaled: Labels, space: VectorSpace
) -> tuple[Tensors, Tensor]:
    """Returns ASAM's ε/ρ = T d(T g): entries are scaled by T = |w| + η, or by 1 in tensors labelled False."""
    scales = torch._foreach_abs(tensors.cast(w, space.dtype))
    torch._foreach_add_(scales, eta)
    for scale, is_scaled in zip(scales, scaled or (), strict=False):
        if not is_scaled:
            scale.fill_(1)
    unit = _steepest(torch._foreach_mul(scales, tensors.cast(g, space.dtype)), p, space)
    torch._foreach_mul_(scales, unit.directions)
    return scales, unit.factors  # (12)


class _Steepest(NamedTuple):
    """The unit vector of the p-norm along which x ascends fastest, as factors · directions."""

    directions: Tensors
    factors: Tensor  # one per tensor
    sizes: Tensor  # the p-norm of each direction


def _steepest(
    g: Tensors, p: float, space: VectorSpace, scales: Tensor | None = None, squares: Tensor | None = None
) -> _Steepest:
    """Returns sign(x) |x|^(q-1) / (‖x‖_q^q)^(1/p) with 1/p + 1/q = 1, for x = scales · g; 0 where x is 0.

    ``squares`` are the ‖g‖² of the tensors, if they are known already.
    """
    if p == 2:
        sizes = (space.squares(g)[0] if squares is None else squares).sqrt()
        scales = torch.ones_like(sizes) if scales is None else scales
        length = (scales * sizes).square().sum().sqrt()
        return _Steepest(g, divide(scales, length), sizes)  # (1)
    maxima = space.largest(g)
    scales = torch.ones_like(maxima) if scales is None else scales
    if math.isinf(p):
        return _Steepest(torch._foreach_sign(g), (scales > 0).to(maxima), (maxima > 0).to(maxima))  # (2)
    # The direction does not depend on the scale of x. Dividing by max |x| first keeps |x|^q in range.
    q = p / (p - 1)
    unit = torch._foreach_mul(tensors.cast(g, space.dtype), list(divide(scales, (scales * maxima).amax()).unbind()))
    sums = space.summed(torch.stack([_raise_and_sum_(x, q) for x in unit]))
    length = sums.sum() ** (1 / p)
    return _Steepest(unit, divide(torch.ones_like(sums), length), sums ** (1 / p))  # (3)


def _raise_and_sum_(x: Tensor, q: float) -> Tensor:
    """Sets x to sign(x) |x|^(q-1), and returns the sum of |x|^q; in place, as copies of all tensors would add up."""
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for piece in x.view(-1).split(tensors.PIECE) if tensors.on_host(x) and x.is_contiguous() else [x]:
        power = piece.abs().pow_(q - 1)
        total += torch.sum(piece.abs().mul_(power))
        piece.sign_().mul_(power)
    return total


def _layer_norms(squares: Tensor, layers: Labels) -> Tensor:
    """Returns, for each tensor, the 2-norm of the layer it belongs to; by default it is a layer of its own."""
    if layers is None or len(set(layers)) == len(layers):
        return squares.sqrt()
    firsts = [layers.index(name) for name in layers]
    same = _same_layer(tuple(firsts), squares.device)
    return torch.where(same, squares[:, None, :], 0).sum(-1).sqrt()


@functools.lru_cache(maxsize=8)
def _same_layer(firsts: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns which pairs of tensors belong to one layer, as a square matrix of booleans."""
    numbers = torch.tensor(firsts, device=device)
    return numbers[:, None] == numbers[None, :]
