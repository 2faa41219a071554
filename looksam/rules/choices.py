"""The third and the fourth choice of a rule: what a refresh step returns, and what the other steps do.

A refresh returns a g_s + b g, and a step between two refreshes g + c g_v, with numbers that depend on norms and dot
products alone. One of your own is a ``RefreshGradient`` or a ``BetweenGradient`` with another function. The numbers in
parentheses are the equations of docs/maths.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from looksam import arguments
from looksam.rules import pytree, validation
from looksam.rules.pytree import Scalar
from looksam.rules.steps import GradientProducts, RefreshWeights, ReuseWeight

Schedule = Callable[[jax.Array], ArrayLike]  # the rule's step count -> a value
ScalarOrSchedule = ArrayLike | Schedule


@dataclass(frozen=True)
class RefreshGradient:
    """What a refresh returns: a g_s + b g, with ``weights(products, count) -> (a, b)``; None for g_s itself."""

    weights: RefreshWeights = None


@dataclass(frozen=True)
class BetweenGradient:
    """What the other steps return: g + c g_v, with ``weight(‖g‖, ‖g_v‖, count) -> c``; None for g, and no g_v kept."""

    weight: ReuseWeight | None = None
    store_dtype: DTypeLike | None = None  # of the kept g_v; None: each parameter's


def sam_gradient() -> RefreshGradient:
    """A refresh returns g_s, the gradient at the perturbed parameters."""
    return RefreshGradient()


def gsam_gradient(alpha: ScalarOrSchedule) -> RefreshGradient:
    """A refresh returns g_s − α g_⊥, with g_⊥ the part of g orthogonal to g_s.

    Args:
      alpha: as for ``looksam.gsam``.
    """
    if arguments.is_number(validation.setting("alpha", alpha)) and alpha == 0:
        return sam_gradient()  # the very program, which XLA rounds alike
    return RefreshGradient(GSAMWeights(alpha))


@dataclass(frozen=True, eq=False)
class GSAMWeights:
    """The weights of g_s and g in what GSAM returns."""

    alpha: ScalarOrSchedule

    def __call__(self, products: GradientProducts, count: jax.Array) -> tuple[Scalar, Scalar]:
        g_s_squared = products.g_s_squared
        # ‖g_⊥‖ = ‖g‖ ‖g_v‖/‖g_s‖: it is rounding, relative to ‖g‖, exactly where g_v is, relative to ‖g_s‖ (9).
        strength = jnp.where(products.g_v_norm > 0, value_at(self.alpha, count, g_s_squared.dtype), 0)
        return 1 + strength * pytree.divide(products.along, g_s_squared), -strength  # (13)


def plain_gradient() -> BetweenGradient:
    """The steps between two refreshes return g."""
    return BetweenGradient()


def reused_g_v(alpha: ScalarOrSchedule = 0.7, store_dtype: DTypeLike | None = None) -> BetweenGradient:
    """The steps between two refreshes return g + α (‖g‖/‖g_v‖) g_v.

    Args:
      alpha, store_dtype: as for ``looksam.look_sam``.
    """
    validation.setting("alpha", alpha)
    return BetweenGradient(LookSAMWeight(alpha), validation.storage(store_dtype))


@dataclass(frozen=True, eq=False)
class LookSAMWeight:
    """The weight of g_v in what LookSAM returns between two refreshes."""

    alpha: ScalarOrSchedule

    def __call__(self, g_norm: Scalar, g_v_norm: Scalar, count: jax.Array) -> Scalar:
        return value_at(self.alpha, count, g_norm.dtype) * pytree.divide(g_norm, g_v_norm)  # (11)


def value_at(setting: Any, count: jax.Array, dtype: DTypeLike) -> Scalar:
    """Returns the value of a number, an array scalar or a schedule at a step count."""
    return jnp.asarray(setting(count) if callable(setting) else setting, dtype)
