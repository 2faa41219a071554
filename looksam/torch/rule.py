"""The two kinds of step, on lists of tensors and in place. The equations are those of docs/maths.md.

Nothing here waits for a device: conditions stay tensors, and on a CPU alone does Python look at them.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from looksam.torch import vector
from looksam.torch.sharding import Space
from looksam.torch.vector import Tensors, divide, finite


class StepInfo(NamedTuple):
    """What a step did. 0-dim tensors, for looking at only.

    A field is None where it would cost a pass over the gradients that the step itself does not need;
    ``full_info=True`` fills them all.
    """

    grad_norm: Tensor | None  # ‖g‖ of the clean gradient
    returned_norm: Tensor | None  # norm of the gradient the base optimizer gets
    g_v_norm: Tensor | None  # ‖g_v‖ found on this step or carried into it; 0 where there is none
    cosine: Tensor | None  # between g and the returned gradient; 1 where g is 0, 0 where only the other is
    refreshed: bool  # was the second gradient taken?
    fell_back: Tensor  # was g returned because a norm was not finite?


def refresh(
    g: Tensors,
    g_s: Tensors,
    space: Space,
    *,
    into: Tensors | None,
    agree: Callable[[Tensor, Tensors], Tensor] | None = None,
) -> StepInfo:
    """Leave in ``g_s`` what the optimizer gets, and write the part of it orthogonal to g to ``into``, if that is given.

    Where each rank has a ``g`` of its own, ``agree(usable, g)`` is to make all of them decide alike, and to leave the
    mean in ``g`` where it is what they return.
    """
    g_squared, along, g_s_squared = space.gram(g, g_s)
    usable = finite(g_squared) & finite(g_s_squared)
    usable = agree(usable, g) if agree else usable
    vector.choose_(usable, g_s, g)  # (10)
    g_v_norm = None
    if into is not None:
        vector.add_into(into, g_s, -divide(along, g_squared), g, space.dtype)  # (8)
        g_v_norm = space.norm(into)
        rounding = 16 * torch.finfo(space.dtype).eps * g_s_squared.sqrt()
        real = usable & finite(g_v_norm) & (g_v_norm > rounding) & (g_squared > 0)  # (9)
        vector.zero_unless_(real, into)
        g_v_norm = torch.where(real, g_v_norm, 0)
    return _info(g_squared, g_s_squared, along, g_v_norm, refreshed=True, fell_back=~usable)


def reuse(
    g: Tensors,
    g_v: list[Tensor | None],
    alphas: list[float],
    g_v_norm: Tensor,
    space: Space,
    *,
    full_info: bool = False,
) -> StepInfo:
    """Bend ``g`` towards the kept g_v by α ‖g‖, in place. A g_v of None is 0."""
    g_norm = space.norm(g)
    ratio = divide(g_norm, g_v_norm)  # 0 where no g_v is kept
    usable = finite(max(alphas) * ratio)
    ratio = torch.where(usable, ratio, 0)
    across = _across(g, g_v, alphas, space) if full_info else None
    fits = _bend_(g, g_v, {alpha: alpha * ratio for alpha in set(alphas)}, alphas, space)  # (11)
    usable = usable if fits is None else usable & fits
    if across is None:
        return StepInfo(g_norm, None, g_v_norm, None, refreshed=False, fell_back=~usable)
    g_squared = g_norm.square()
    along = g_squared + ratio * across
    return _info(g_squared, space.squares(g).sum(), along, g_v_norm, refreshed=False, fell_back=~usable)


def _bend_(
    g: Tensors, g_v: list[Tensor | None], factors: dict[float, Tensor], alphas: list[float], space: Space
) -> Tensor | None:
    """``g += factor * g_v``, or nothing where that overflows g's dtype. Did it fit? None where it must."""
    kept = [(x, v, factors[alpha]) for x, v, alpha in zip(g, g_v, alphas, strict=True) if v is not None]
    bent, parts, scales = (list(column) for column in zip(*kept, strict=True))
    narrow = not vector.all_of(space.dtype, g)
    before = vector.copies(bent) if narrow else ()
    vector.add_scaled_(bent, scales, parts, space.dtype)
    if not narrow:  # as wide as its norm: with a finite factor the sum is finite, or g is not
        return None
    fits = finite(space.norm(g))
    vector.choose_(fits, bent, before)
    return fits


def _across(g: Tensors, g_v: list[Tensor | None], alphas: list[float], space: Space) -> Tensor:
    """Σ α ⟨g, g_v⟩ over the tensors."""
    zero = torch.zeros((), dtype=space.dtype, device=g[0].device)
    dots = [zero if v is None else vector.dots([x], [v], space.dtype)[0] for x, v in zip(g, g_v, strict=True)]
    return space.summed(torch.stack(torch._foreach_mul(dots, alphas))).sum()


def plain(g: Tensors, space: Space, *, full_info: bool) -> StepInfo:
    """The gradient stays as it is."""
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
