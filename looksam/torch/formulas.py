"""The equations of docs/maths.md on lists of tensors: the perturbation ε, the refresh step and the reuse step.

A new perturbation is a function like ``global_perturbation``, and a new kind of step one like ``reuse``; both work on
the shards of this rank and take their norms from ``space``. Nothing here waits for a device: conditions stay tensors,
and only on a CPU does Python read them.
"""

import functools
import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from looksam.torch import tensors
from looksam.torch.sharding import VectorSpace
from looksam.torch.tensors import Tensors, divide, finite

# (g, w, the layer of each tensor, space) → one direction per tensor and one factor per tensor, where ε/ρ is
# factor · direction. For p = 2 the directions are the gradients themselves, so that nothing is written.
UnitPerturbation = Callable[[Tensors, Tensors, list[Hashable], VectorSpace], tuple[Tensors, Tensor]]


class StepInfo(NamedTuple):
    """What a step did, as 0-dim tensors, for logging only.

    A field is None where it would cost a pass over the gradients that the step itself does not need;
    ``full_info=True`` fills in all of them.
    """

    grad_norm: Tensor | None  # ‖g‖ of the clean gradient
    returned_norm: Tensor | None  # norm of the gradient that the base optimizer gets
    g_v_norm: Tensor | None  # ‖g_v‖ computed on this step or carried into it; 0 where there is none
    cosine: Tensor | None  # between g and the returned gradient; 1 where g is 0, 0 where only the other is
    refreshed: bool  # whether the second gradient was taken
    fell_back: Tensor  # whether g was returned because a norm was not finite


def global_perturbation(p: float) -> UnitPerturbation:
    """Returns SAM's ε/ρ: the unit vector of the p-norm of steepest ascent, over all parameters."""
    return functools.partial(_over_all, p)


def layer_perturbation(p: float, scaling: str) -> UnitPerturbation:
    """Returns LayerSAM's ε/ρ: the perturbation of each layer is scaled by the norm of the layer's weights."""
    return functools.partial(_by_layer, p, scaling)


def _over_all(p: float, g: Tensors, w: Tensors, layers: list[Hashable], space: VectorSpace) -> tuple[Tensors, Tensor]:
    del w, layers
    unit = _steepest(g, p, space)
    return unit.directions, unit.factors


def _by_layer(
    p: float, scaling: str, g: Tensors, w: Tensors, layers: list[Hashable], space: VectorSpace
) -> tuple[Tensors, Tensor]:
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
    powers = torch._foreach_pow(torch._foreach_abs(unit), q)
    sums = space.summed(torch.stack([x.sum() for x in powers]))
    directions = torch._foreach_pow(torch._foreach_abs(unit), q - 1)
    torch._foreach_mul_(directions, torch._foreach_sign(unit))
    length = sums.sum() ** (1 / p)
    return _Steepest(directions, divide(torch.ones_like(sums), length), sums ** (1 / p))  # (3)


def _layer_norms(squares: Tensor, layers: list[Hashable]) -> Tensor:
    """Returns, for each tensor, the 2-norm of the layer it belongs to."""
    if len(set(layers)) == len(layers):
        return squares.sqrt()
    firsts = [layers.index(name) for name in layers]
    same = _same_layer(tuple(firsts), squares.device)
    return torch.where(same, squares[:, None, :], 0).sum(-1).sqrt()


@functools.lru_cache(maxsize=8)
def _same_layer(firsts: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns which pairs of tensors belong to one layer, as a square matrix of booleans."""
    numbers = torch.tensor(firsts, device=device)
    return numbers[:, None] == numbers[None, :]


def refresh(
    g: Tensors,
    g_s: Tensors,
    space: VectorSpace,
    *,
    into: Tensors | None,
    agree: Callable[[Tensor, Tensors], Tensor] | None = None,
) -> StepInfo:
    """Leaves in ``g_s`` the gradient for the base optimizer, and writes its part orthogonal to g to ``into``, if given.

    Where each rank has a ``g`` of its own, ``agree(usable, g)`` makes all ranks decide alike, and leaves the mean in
    ``g`` if that is what they return.
    """
    g_squared, along, g_s_squared = space.gram(g, g_s)
    usable = finite(g_squared) & finite(g_s_squared)
    usable = agree(usable, g) if agree else usable
    tensors.choose_(usable, g_s, g)  # (10)
    g_v_norm = None
    if into is not None:
        tensors.add_into(into, g_s, -divide(along, g_squared), g, space.dtype)  # (8)
        g_v_norm = space.norm(into)
        rounding = 16 * torch.finfo(space.dtype).eps * g_s_squared.sqrt()
        real = usable & finite(g_v_norm) & (g_v_norm > rounding) & (g_squared > 0)  # (9)
        tensors.zero_unless_(real, into)
        g_v_norm = torch.where(real, g_v_norm, 0)
    return _info(g_squared, g_s_squared, along, g_v_norm, refreshed=True, fell_back=~usable)


def reuse(
    g: Tensors,
    g_v: list[Tensor | None],
    alphas: list[float],
    g_v_norm: Tensor,
    space: VectorSpace,
    *,
    full_info: bool = False,
) -> StepInfo:
    """Adds α (‖g‖/‖g_v‖) g_v to ``g``, in place. A g_v of None is 0."""
    g_norm = space.norm(g)
    ratio = divide(g_norm, g_v_norm)  # 0 where no g_v is kept
    usable = finite(max(alphas) * ratio)
    ratio = torch.where(usable, ratio, 0)
    weighted = _weighted_dot(g, g_v, alphas, space) if full_info else None
    fits = _add_g_v_(g, g_v, {alpha: alpha * ratio for alpha in set(alphas)}, alphas, space)  # (11)
    usable = usable if fits is None else usable & fits
    if weighted is None:
        return StepInfo(g_norm, None, g_v_norm, None, refreshed=False, fell_back=~usable)
    g_squared = g_norm.square()
    along = g_squared + ratio * weighted
    return _info(g_squared, space.squares(g).sum(), along, g_v_norm, refreshed=False, fell_back=~usable)


def _add_g_v_(
    g: Tensors, g_v: list[Tensor | None], factors: dict[float, Tensor], alphas: list[float], space: VectorSpace
) -> Tensor | None:
    """Adds ``factor * g_v`` to ``g`` unless that overflows g's dtype. Returns whether it fits; None if it must."""
    kept = [(x, v, factors[alpha]) for x, v, alpha in zip(g, g_v, alphas, strict=True) if v is not None]
    adjusted, parts, scales = (list(column) for column in zip(*kept, strict=True))
    narrow = not tensors.all_of(space.dtype, g)
    before = tensors.copies(adjusted) if narrow else ()
    tensors.add_scaled_(adjusted, scales, parts, space.dtype)
    if not narrow:  # g is as wide as its norm: with a finite factor the sum is finite, or g is not
        return None
    fits = finite(space.norm(g))
    tensors.choose_(fits, adjusted, before)
    return fits


def _weighted_dot(g: Tensors, g_v: list[Tensor | None], alphas: list[float], space: VectorSpace) -> Tensor:
    """Returns Σ α ⟨g, g_v⟩ over the tensors."""
    zero = torch.zeros((), dtype=space.dtype, device=g[0].device)
    dots = [zero if v is None else tensors.dots([x], [v], space.dtype)[0] for x, v in zip(g, g_v, strict=True)]
    return space.summed(torch.stack(torch._foreach_mul(dots, alphas))).sum()


def plain(g: Tensors, space: VectorSpace, *, full_info: bool) -> StepInfo:
    """Leaves the gradient as it is."""
    device = g[0].device
    norm = space.norm(g) if full_info else None
    one, zero = (torch.full((), x, dtype=space.dtype, device=device) for x in (1, 0))
    return StepInfo(norm, norm, zero, one, refreshed=False, fell_back=zero.bool())


def _info(
    g_squared: Tensor,
    returned_squared: Tensor,
    along: Tensor,
    g_v_norm: Tensor | None,
    *,
    refreshed: bool,
    fell_back: Tensor,
) -> StepInfo:
    """Returns the info of a step from ‖g‖², the squared norm of the returned gradient, and their dot product."""
    grad_norm, other_norm = g_squared.sqrt(), returned_squared.sqrt()
    cosine = divide(divide(along, grad_norm), other_norm)
    is_g = fell_back | ~((grad_norm > 0) & finite(grad_norm))
    return StepInfo(
        grad_norm=grad_norm,
        returned_norm=torch.where(fell_back, grad_norm, other_norm),
        g_v_norm=g_v_norm,
        cosine=torch.where(is_g, 1, cosine.clamp(-1, 1)),
        refreshed=refreshed,
        fell_back=fell_back,
    )
