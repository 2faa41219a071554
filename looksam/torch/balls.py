"""The perturbation ε: which neighbour of the weights SAM looks at. The equations are those of docs/maths.md.

A ball answers with a direction for each tensor and a factor for each: ε/ρ = factor · direction. For p = 2 the
direction is the gradient itself, and nothing is written.
"""

import functools
import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from looksam.torch import vector
from looksam.torch.sharding import Space
from looksam.torch.vector import Tensors, divide

Layers = Callable[[str], Hashable]  # a parameter's name, "block.weight", to the name of its layer
Ball = Callable[[Tensors, Tensors, list[Hashable], Space], tuple[Tensors, Tensor]]  # (g, w, layers, space)

SCALINGS = ("normalized", "literal", "adaptive")


class Steepest(NamedTuple):
    """The unit vector of the p-norm that climbs x fastest, as factors · directions."""

    directions: Tensors
    factors: Tensor  # one a tensor
    sizes: Tensor  # the p-norm of each direction


def steepest(
    g: Tensors, p: float, space: Space, scales: Tensor | None = None, squares: Tensor | None = None
) -> Steepest:
    """d(x) = sign(x) |x|^(q-1) / (‖x‖_q^q)^(1/p) with 1/p + 1/q = 1, for x = scales · g; 0 where x is 0.

    ``squares`` are the ‖g‖² of the tensors, where they are known already.
    """
    if p == 2:
        sizes = (space.squares(g)[0] if squares is None else squares).sqrt()
        scales = torch.ones_like(sizes) if scales is None else scales
        length = (scales * sizes).square().sum().sqrt()
        return Steepest(g, divide(scales, length), sizes)  # (1)
    tops = space.largest(g)
    scales = torch.ones_like(tops) if scales is None else scales
    if math.isinf(p):
        return Steepest(torch._foreach_sign(g), (scales > 0).to(tops), (tops > 0).to(tops))  # (2)
    # The direction does not depend on the scale of x. Dividing by max |x| first keeps |x|^q in range.
    q = p / (p - 1)
    unit = torch._foreach_mul(vector.cast(g, space.dtype), list(divide(scales, (scales * tops).amax()).unbind()))
    powers = torch._foreach_pow(torch._foreach_abs(unit), q)
    sums = space.summed(torch.stack([x.sum() for x in powers]))
    directions = torch._foreach_pow(torch._foreach_abs(unit), q - 1)
    torch._foreach_mul_(directions, torch._foreach_sign(unit))
    length = sums.sum() ** (1 / p)
    return Steepest(directions, divide(torch.ones_like(sums), length), sums ** (1 / p))  # (3)


def global_ball(p: float) -> Ball:
    """One ball for the whole parameter vector."""
    return functools.partial(_global, p)


def layer_ball(p: float, scaling: str) -> Ball:
    """A radius for each layer, by the layer's own weights."""
    return functools.partial(_by_layer, p, scaling)


def _global(p: float, g: Tensors, w: Tensors, layers: list[Hashable], space: Space) -> tuple[Tensors, Tensor]:
    del w, layers
    found = steepest(g, p, space)
    return found.directions, found.factors


def _by_layer(
    p: float, scaling: str, g: Tensors, w: Tensors, layers: list[Hashable], space: Space
) -> tuple[Tensors, Tensor]:
    squares = space.squares(w, g)
    weight_norms, g_norms = _layer_norms(squares, layers)  # T and ‖g_i‖
    if scaling == "adaptive":
        found = steepest(g, p, space, weight_norms, squares[1])
        return found.directions, weight_norms * found.factors  # (6)
    found = steepest(g, p, space, squares=squares[1])
    ratios = divide(weight_norms, g_norms)  # Λ, 0 where g_i = 0
    if scaling == "literal":
        return found.directions, ratios * found.factors  # (5)
    length = torch.linalg.vector_norm(ratios * found.sizes, p)
    return found.directions, divide(ratios, length)  # (4)


def _layer_norms(squares: Tensor, layers: list[Hashable]) -> Tensor:
    """For each tensor, the 2-norm of the layer it belongs to."""
    if len(set(layers)) == len(layers):
        return squares.sqrt()
    firsts = [layers.index(name) for name in layers]
    together = _together(tuple(firsts), squares.device)
    return torch.where(together, squares[:, None, :], 0).sum(-1).sqrt()


@functools.lru_cache(maxsize=8)
def _together(firsts: tuple[int, ...], device: torch.device) -> Tensor:
    """Which tensors are of one layer, as a square of booleans."""
    numbers = torch.tensor(firsts, device=device)
    return numbers[:, None] == numbers[None, :]
