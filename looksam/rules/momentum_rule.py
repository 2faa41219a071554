"""MSAM: the perturbation follows the momentum of past gradients, so that a step needs one gradient and no clean one.

The number in parentheses is that of docs/maths.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from looksam import arguments
from looksam.rules import pytree, validation
from looksam.rules.choices import value_at
from looksam.rules.pytree import Scalar, Vector
from looksam.rules.rule import Rule, ValueAndGrad, checked_value_and_grad
from looksam.rules.steps import StepInfo


@dataclass(frozen=True)
class MomentumPerturbation:
    """MSAM's perturbation, from the state of the rule instead of the gradient."""

    momentum: ArrayLike
    store_dtype: DTypeLike | None  # of the kept momentum; None: each parameter's


def momentum_perturbation(momentum: float = 0.9, store_dtype: DTypeLike | None = None) -> MomentumPerturbation:
    """MSAM's perturbation: against the momentum v ← μ v + g of the gradients so far.

    It has no clean gradient: ``compose`` takes it with a refresh on every step alone.

    Args:
      momentum, store_dtype: as for ``looksam.msam``.
    """
    return MomentumPerturbation(arguments.decay("momentum", momentum), validation.storage(store_dtype))


class MomentumState(NamedTuple):
    """The state of rules that perturb along the momentum."""

    count: jax.Array  # type: ignore[assignment]  # steps taken so far
    v: Vector  # the momentum of the gradients so far
    v_norm: jax.Array  # ‖v‖, kept so that a step need not read v twice; 0 where v is of no meaning


class MomentumRule(Rule):
    """A rule whose only gradient of a step is taken at w + ε; ``value`` is the loss there.

    ``refresh`` says whether the parameters are perturbed. ``transform`` takes its gradient from ``gradient_at``, except
    with ``refresh=False``, and does not read ``g``; under jit, the clean gradient is then not computed.
    """

    perturbation: MomentumPerturbation  # type: ignore[assignment]

    def init(self, params: Vector) -> MomentumState:  # type: ignore[override]
        super().init(params)
        v = jax.tree.map(lambda w: jnp.zeros_like(w, dtype=self.perturbation.store_dtype), params)
        return MomentumState(jnp.zeros((), jnp.int32), v, jnp.zeros((), pytree.accumulator(params)))

    def gradient(  # type: ignore[override]
        self, value_and_grad: ValueAndGrad, params: Vector, state: Any, *args: Any, refresh: bool | None = None
    ) -> tuple[Any, Vector, MomentumState, StepInfo]:
        self._check(params, state, refresh)
        weights = self._weights(params, state, refresh)
        with validation.unchanged(params if refresh is not False else ()):
            value, g = checked_value_and_grad(value_and_grad, weights, *args)
        return value, *self._step(g, state, refresh)

    def transform(  # type: ignore[override]
        self,
        g: Vector,
        gradient_at: Callable[[Vector], Vector],
        params: Vector,
        state: Any,
        *,
        refresh: bool | None = None,
    ) -> tuple[Vector, MomentumState, StepInfo]:
        self._check(params, state, refresh)
        weights = self._weights(params, state, refresh)
        with validation.unchanged(params if refresh is not False else ()):
            only = g if refresh is False else gradient_at(weights)
        validation.check_gradient(params, only)
        return self._step(only, state, refresh)

    def perturb(self, g: Vector, params: Vector, state: Any) -> Vector:
        """Returns w − ρ v/‖v‖; ``g`` is not read."""
        del g
        return self._moved(params, state, value_at(self.rho, state.count, state.v_norm.dtype))

    def _weights(self, params: Vector, state: MomentumState, refresh: bool | None) -> Vector:
        """Returns the parameters at which the gradient is taken: w + ε, and w where the rule does not act."""
        if refresh is False:
            return params
        radius = value_at(self.rho, state.count, state.v_norm.dtype)
        return self._moved(params, state, jnp.where(self._acts(state, refresh), radius, jnp.zeros_like(radius)))

    def _moved(self, params: Vector, state: MomentumState, radius: Scalar) -> Vector:
        dtype, keep = pytree.accumulator(params), self._perturbed_leaves(params)
        part, v = pytree.selected(params, keep), pytree.cast(pytree.selected(state.v, keep), dtype)
        norm = state.v_norm if all(keep) else jnp.sqrt(pytree.squared_norm(v, dtype))
        factor = jnp.where(state.v_norm > 0, pytree.divide(radius, norm), jnp.zeros_like(norm))
        moved = pytree.add_scaled(pytree.cast(part, dtype), -factor, v)  # (14)
        return pytree.filled(pytree.cast_like(moved, part), params, keep)

    def _step(self, g: Vector, state: MomentumState, refresh: bool | None) -> tuple[Vector, MomentumState, StepInfo]:
        """Returns g, and adds it to the momentum on the steps on which the rule acts, unless it is not finite."""
        self._check_refresh(state, refresh)
        dtype, acts = state.v_norm.dtype, self._acts(state, refresh)
        norm, no = jnp.sqrt(pytree.squared_norm(g, dtype)), jnp.zeros((), bool)
        info = StepInfo(norm, norm, jnp.zeros_like(norm), jnp.ones_like(norm), refreshed=acts, fell_back=no)
        # Outside the window nothing is kept: a norm of 0 stands for no momentum, and saves writing v.
        inside = self.schedule.is_active(state.count) | acts
        kept_norm = jnp.where(inside, state.v_norm, jnp.zeros_like(state.v_norm))
        if refresh is False:
            return g, MomentumState(state.count + 1, state.v, kept_norm), info
        entering = acts & jnp.isfinite(norm)
        momentum = jnp.where(kept_norm > 0, jnp.asarray(self.perturbation.momentum, dtype), 0)

        def updated(v: jax.Array, g: jax.Array) -> jax.Array:
            wide = momentum * jnp.asarray(v, dtype) + jnp.asarray(g, dtype)
            return jnp.where(entering, pytree.cast_like(wide, v), v)

        v = jax.tree.map(updated, state.v, g)
        v_norm = jnp.where(entering, jnp.sqrt(pytree.squared_norm(v, dtype)), kept_norm)
        fits = jnp.isfinite(v_norm)  # a momentum that overflows is reset
        v_norm = jnp.where(fits, v_norm, jnp.zeros_like(v_norm))
        return g, MomentumState(state.count + 1, pytree.zero_unless(fits, v), v_norm), info

    def _plain(self, g: Vector, state: Any, dtype: DTypeLike) -> Any:
        return self._step(g, state, False)

    def _acts(self, state: MomentumState, refresh: bool | None) -> Scalar:
        """Returns whether this step perturbs: as ``refresh`` says, or by the count."""
        return jnp.asarray(self.schedule.is_active(state.count) if refresh is None else refresh)

    @property
    def _state_type(self) -> type:
        return MomentumState
