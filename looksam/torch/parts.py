"""The choices of which a rule is composed: which perturbation, what a refresh step returns, what the other steps do.

The fourth, on which steps the second gradient is taken, is ``every``. ``SharpnessAware`` takes all four, and each of
the named rules is one combination. Arguments are checked here, so that a part alone reports what is wrong with it.
"""

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from looksam import arguments
from looksam.arguments import Scaling
from looksam.torch import perturbations
from looksam.torch.param_groups import ByName, Layers, ScalarOrSchedule, check_store_dtype, non_negative
from looksam.torch.perturbations import UnitPerturbation


@dataclass(frozen=True)
class Perturbation:
    """A perturbation made from the clean gradient. One of your own is this with another ``unit``."""

    unit: UnitPerturbation
    argument: str = ""  # the name of ``by_name`` in error messages
    by_name: Callable[[str], Hashable] | None = None  # its results for each tensor's name are the labels of ``unit``


@dataclass(frozen=True)
class MomentumPerturbation:
    """The perturbation along past gradients: a step takes one gradient, and no clean one."""

    momentum: float
    store_dtype: torch.dtype | None
    use_base_momentum: bool


@dataclass(frozen=True)
class RefreshGradient:
    """What a refresh step returns: g_s − α g_⊥, or g_s where α is None."""

    alpha: ScalarOrSchedule | None = None


@dataclass(frozen=True)
class BetweenGradient:
    """What the other steps return: g + α (‖g‖/‖g_v‖) g_v, or g where α is None, and then no g_v is kept."""

    alpha: ScalarOrSchedule | None = None
    store_dtype: torch.dtype | None = None


def global_perturbation(p: float = 2.0) -> Perturbation:
    """Returns SAM's perturbation: ε is ρ times one unit vector over all parameters.

    Args:
      p: the norm in which it has length ρ, 1 < p ≤ ∞.

    Example:
      >>> import torch
      >>> from looksam.torch import SharpnessAware, every, global_perturbation
      >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> SharpnessAware(torch.optim.SGD([w], lr=0.1), global_perturbation(), rho=0.1, schedule=every(5)).k
      5
    """
    return Perturbation(functools.partial(perturbations.over_all, arguments.exponent(p)))


def layerwise_perturbation(
    p: float = 2.0, scaling: Scaling = "normalized", layers: Layers | None = None
) -> Perturbation:
    """Returns LayerSAM's perturbation: that of each layer is scaled by the norm of the layer's weights.

    Args:
      p, scaling, layers: as for ``LayerSAM``.

    Example:
      >>> import torch
      >>> from looksam.torch import SharpnessAware, every, layerwise_perturbation
      >>> model = torch.nn.Linear(3, 1)
      >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> opt = SharpnessAware(base, layerwise_perturbation(), rho=1.0, schedule=every(5))  # LayerSAM on every 5th step
    """
    arguments.name_function("layers", layers, "block.weight", "the name of its layer")
    unit = functools.partial(perturbations.by_layer, arguments.exponent(p), arguments.layer_scaling(scaling))
    return Perturbation(unit, "layers", layers)


def elementwise_perturbation(p: float = 2.0, eta: float = 0.01, scale: ByName | None = None) -> Perturbation:
    """Returns ASAM's perturbation: that of each weight is scaled by its own size, T = |w| + η.

    Args:
      p, eta, scale: as for ``ASAM``.

    Example:
      >>> import torch
      >>> from looksam.torch import SharpnessAware, elementwise_perturbation, every, reused_g_v
      >>> model = torch.nn.Linear(3, 1)
      >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> opt = SharpnessAware(  # LookSAM with ASAM's perturbation
      ...     base, elementwise_perturbation(), rho=0.5, schedule=every(5), between=reused_g_v(alpha=0.7)
      ... )
    """
    arguments.name_function("scale", scale, "block.weight", "True or False")
    eta = arguments.non_negative("eta", eta, "a number >= 0")
    return Perturbation(functools.partial(perturbations.by_element, arguments.exponent(p), eta), "scale", scale)


def momentum_perturbation(
    momentum: float = 0.9, store_dtype: torch.dtype | None = None, use_base_momentum: bool = False
) -> MomentumPerturbation:
    """Returns MSAM's perturbation: ε = −ρ v/‖v‖ with v ← μ v + g. The only gradient of a step is taken at w + ε.

    There is no clean gradient: it combines with no period, GSAM's refresh, reuse or perturbation per rank.

    Args:
      momentum, store_dtype, use_base_momentum: as for ``MSAM``.

    Example:
      >>> import torch
      >>> from looksam.torch import SharpnessAware, momentum_perturbation
      >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> opt = SharpnessAware(torch.optim.SGD([w], lr=0.1), momentum_perturbation(0.95), rho=0.3)
      >>> opt.needs_second_pass
      False
    """
    check_store_dtype(store_dtype)
    return MomentumPerturbation(arguments.decay("momentum", momentum), store_dtype, use_base_momentum)


def sam_gradient() -> RefreshGradient:
    """Returns the refresh of SAM: the base optimizer gets g_s, the gradient at w + ε.

    Example:
      >>> from looksam.torch import sam_gradient
      >>> sam_gradient().alpha is None
      True
    """
    return RefreshGradient()


def gsam_gradient(alpha: ScalarOrSchedule) -> RefreshGradient:
    """Returns the refresh of GSAM: the base optimizer gets g_s − α g_⊥, with g_⊥ the part of g orthogonal to g_s.

    Args:
      alpha: strength α ≥ 0: a number, or a function of the rule's step count.

    Example:
      >>> import torch
      >>> from looksam.torch import SharpnessAware, every, global_perturbation, gsam_gradient
      >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> base = torch.optim.SGD([w], lr=0.1)
      >>> opt = SharpnessAware(  # GSAM on every 5th step
      ...     base, global_perturbation(), rho=0.1, schedule=every(5), refresh=gsam_gradient(0.2)
      ... )
      >>> opt.param_groups[0]["alpha"]
      0.2
    """
    return RefreshGradient(_strength(alpha))


def plain_gradient() -> BetweenGradient:
    """Returns the other steps of SAM-k: the base optimizer gets g.

    Example:
      >>> from looksam.torch import plain_gradient
      >>> plain_gradient().alpha is None
      True
    """
    return BetweenGradient()


def reused_g_v(alpha: ScalarOrSchedule = 0.7, store_dtype: torch.dtype | None = None) -> BetweenGradient:
    """Returns the other steps of LookSAM: the base optimizer gets g + α (‖g‖/‖g_v‖) g_v.

    Args:
      alpha, store_dtype: as for ``LookSAM``.

    Example:
      >>> import torch
      >>> from looksam.torch import SharpnessAware, every, global_perturbation, gsam_gradient, reused_g_v
      >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> opt = SharpnessAware(
      ...     torch.optim.SGD([w], lr=0.1),
      ...     global_perturbation(),
      ...     rho=0.1,
      ...     schedule=every(5),
      ...     refresh=gsam_gradient(0.2),
      ...     between=reused_g_v(0.5),
      ... )
      >>> opt.param_groups[0]["alpha"], opt.param_groups[0]["gsam_alpha"]  # where both have an α
      (0.5, 0.2)
    """
    check_store_dtype(store_dtype)
    return BetweenGradient(_strength(alpha), store_dtype)


def _strength(alpha: ScalarOrSchedule) -> ScalarOrSchedule:
    return alpha if callable(alpha) else non_negative("alpha", alpha)
