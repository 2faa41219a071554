"""The equations of docs/maths.md on lists of tensors: what a refresh step, a reuse step and any other step return.

A new kind of step is a function like ``reuse``; it works on the shards of this rank and takes its norms from ``space``.
Nothing here waits for a device: conditions stay tensors, and only on a CPU does Python read them.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from looksam.torch import tensors
from looksam.torch.sharding import VectorSpace
from looksam.torch.tensors import Tensors, divide, finite


class StepInfo(NamedTuple):
    """What a step did, as 0-dim tensors, for logging only.

    A field is None where it would cost a pass over the gradients that the step itself does not need;
    ``full_info=True`` fills in all of them.
    """

    grad_norm: Tensor | None  # ‖g‖ of the clean gradient; for MSAM, that of its only one
    returned_norm: Tensor | None  # norm of the gradient that the base optimizer gets
    g_v_norm: Tensor | None  # ‖g_v‖ computed on this step or carried into it; 0 where there is none
    cosine: Tensor | None  # between g and the returned gradient; 1 where g is 0, 0 where only the other is
    refreshed: bool  # whether a gradient was taken at the perturbed parameters w + ε
    fell_back: Tensor  # whether g was returned because a norm was not finite


def refresh(
    g: Tensors,
    g_s: Tensors,
    space: VectorSpace,
    *,
    into: Tensors | None,
    alphas: list[float] | None = None,
    agree: Callable[[Tensor, Tensors], Tensor] | None = None,
    full_info: bool = False,
) -> StepInfo:
    """Leaves in ``g_s`` the gradient for the base optimizer, and writes its part orthogonal to g to ``into``, if given.

    With ``alphas``, one per tensor, that gradient is GSAM's; ``into`` must not be ``g`` then. Where each rank has a
    ``g`` of its own, ``agree(usable, g)`` makes all ranks decide alike, and leaves the mean in ``g`` if that is what
    they return.
    """
    g_squared, along, g_s_squared = space.gram(g, g_s)
    usable = finite(g_squared) & finite(g_s_squared)
    usable = agree(usable, g) if agree else usable
    tensors.choose_(usable, g_s, g)  # (10)
    g_v_norm = None
    if into is not None:
        tensors.add_into(into, g_s, -divide(along, g_squared), g, space.dtype)  # (8)
        g_v_norm = _norm_unless_rounding_(into, usable & (g_squared > 0), g_s_squared, space)
    if alphas is None:
        return _info(g_squared, g_s_squared, along, g_v_norm, refreshed=True, fell_back=~usable)

    # GSAM, which needs g_⊥, the part of g orthogonal to g_s.
    part = [torch.empty_like(x) for x in g]
    tensors.add_into(part, g, -divide(along, g_s_squared), g_s, space.dtype)
    size = _norm_unless_rounding_(part, usable & (g_s_squared > 0), g_squared, space)
    if g_v_norm is None:
        g_v_norm = torch.where(size > 0, size * divide(g_s_squared, g_squared).sqrt(), 0)
    strengths = {alpha: torch.full_like(size, -alpha) for alpha in set(alphas)}
    tensors.add_scaled_(g_s, [strengths[alpha] for alpha in alphas], part, space.dtype)  # (13)
    fits = finite((g_s_squared.sqrt() + max(alphas) * size).square())
    if not tensors.all_of(space.dtype, g_s):  # rounding to a narrow dtype may overflow
        fits = fits & finite(space.norm(g_s))
    tensors.choose_(fits, g_s, g)
    usable = usable & fits
    if len(strengths) == 1:
        g_s_squared, along = g_s_squared + (alphas[0] * size).square(), along - alphas[0] * size.square()
    elif full_info:
        _, along, g_s_squared = space.gram(g, g_s)
    info = _info(g_squared, g_s_squared, along, g_v_norm, refreshed=True, fell_back=~usable)
    return info if len(strengths) == 1 or full_info else info._replace(returned_norm=None, cosine=None)


def _norm_unless_rounding_(part: Tensors, usable: Tensor, whole_squared: Tensor, space: VectorSpace) -> Tensor:
    """Returns the norm of an orthogonal part; where that is only rounding, sets the part to 0."""
    norm = space.norm(part)
    rounding = 16 * torch.finfo(space.dtype).eps * whole_squared.sqrt()
    real = usable & finite(norm) & (norm > rounding)  # (9)
    tensors.zero_unless_(real, part)
    return torch.where(real, norm, 0)


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
