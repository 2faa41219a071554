"""What a rule carries between steps, and the maths of its three kinds of steps: refresh, reuse and plain.

Each is a pure function ``(gradients, state, ...) -> (returned gradient, new state, info)``. The numbers in parentheses
are the equations of docs/maths.md.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from looksam.rules import pytree
from looksam.rules.pytree import Scalar, Vector


class SAMState(NamedTuple):
    """The state of rules that keep no g_v."""

    count: jax.Array  # type: ignore[assignment]  # steps taken so far


class LookSAMState(NamedTuple):
    """The state of rules that reuse g_v."""

    count: jax.Array  # type: ignore[assignment]  # steps taken so far
    g_v: Vector  # the part of the last SAM gradient orthogonal to g; 0 where there is none to reuse
    g_v_norm: jax.Array  # ‖g_v‖, kept so that reuse steps need not read g_v twice


State = SAMState | LookSAMState


class StepInfo(NamedTuple):
    """Scalars that describe a step, for monitoring only."""

    grad_norm: jax.Array  # ‖g‖ of the clean gradient
    returned_norm: jax.Array  # norm of the gradient that the optimizer gets
    g_v_norm: jax.Array  # ‖g_v‖, computed on this step or carried into it; 0 where there is none
    cosine: jax.Array  # between g and the returned gradient; 1 where g is 0, 0 where only the other is
    refreshed: jax.Array  # whether the second gradient was taken
    fell_back: jax.Array  # whether g was returned because a norm was not finite


Step = tuple[Vector, State, StepInfo]  # the returned gradient, the new state and what the step did


def initial_state(params: Vector, *, keeps_g_v: bool, store_dtype: DTypeLike | None) -> State:
    """Returns the state before the first step, with each g_v sharded as its parameter."""
    count = jnp.zeros((), jnp.int32)
    if not keeps_g_v:
        return SAMState(count)
    g_v = jax.tree.map(lambda w: jnp.zeros_like(w, dtype=store_dtype), params)  # zeros_like keeps the sharding
    return LookSAMState(count, g_v, jnp.zeros((), pytree.accumulator(params)))


def refresh_step(g: Vector, g_s: Vector, state: State, dtype: DTypeLike) -> Step:
    """Returns g_s, and keeps the part of it that is orthogonal to g if the state has a place for it."""
    g_squared = pytree.squared_norm(g, dtype)
    g_s_squared, along = pytree.squared_norm_and_dot(g_s, g, dtype)
    # Guards look at square roots: XLA repeats a bare sum over all leaves, add by add, in what every leaf is fused into.
    g_norm, g_s_norm = jnp.sqrt(g_squared), jnp.sqrt(g_s_squared)
    usable = jnp.isfinite(g_norm) & jnp.isfinite(g_s_norm)

    # One projection over the whole vector. Where ‖g‖ is 0 there is no g_v.
    wide_g, wide_g_s = pytree.cast(g, dtype), pytree.cast(g_s, dtype)
    g_v = pytree.add_scaled(wide_g_s, -pytree.divide(along, g_squared), wide_g)  # (8)
    g_v = pytree.cast_like(g_v, state.g_v if isinstance(state, LookSAMState) else g)
    g_v_norm = jnp.sqrt(pytree.squared_norm(g_v, dtype))
    rounding = 16 * jnp.finfo(dtype).eps * g_s_norm
    exists = usable & jnp.isfinite(g_v_norm) & (g_v_norm > rounding) & (g_norm > 0)  # (9)
    g_v_norm = jnp.where(exists, g_v_norm, jnp.zeros_like(g_v_norm))

    returned = pytree.where(usable, pytree.cast_like(g_s, g), g)  # (10)
    info = _info(g_squared, g_s_squared, along, g_v_norm, refreshed=True, fell_back=~usable)
    if not isinstance(state, LookSAMState):
        return returned, SAMState(state.count + 1), info
    exists = _after(exists, state.g_v)
    return returned, LookSAMState(state.count + 1, pytree.zero_unless(exists, g_v), g_v_norm), info


def reuse_step(g: Vector, alpha: Scalar, state: LookSAMState, dtype: DTypeLike) -> Step:
    """Returns g adjusted by α ‖g‖ along the kept g_v."""
    g_squared = pytree.squared_norm(g, dtype)
    factor = alpha * pytree.divide(jnp.sqrt(g_squared), state.g_v_norm)  # 0 where no g_v is kept
    usable = jnp.isfinite(factor)
    factor = jnp.where(usable, factor, jnp.zeros_like(factor))
    wide_g, wide_v = pytree.cast(g, dtype), pytree.cast(state.g_v, dtype)
    adjusted = pytree.cast_like(pytree.add_scaled(wide_g, factor, wide_v), g)  # (11)
    if pytree.is_narrower(g, dtype):  # rounding to a narrow dtype may overflow
        fits = jnp.isfinite(pytree.squared_norm(adjusted, dtype))
        usable, adjusted = usable & fits, pytree.where(fits, adjusted, g)

    # Used by the info alone, so that XLA drops it where the info is not used.
    g_squared, across = pytree.squared_norm_and_dot(g, state.g_v, dtype)
    along = g_squared + factor * across
    adjusted_squared = along + factor * (across + factor * state.g_v_norm**2)
    info = _info(
        g_squared,
        jnp.maximum(adjusted_squared, jnp.zeros_like(along)),
        along,
        state.g_v_norm,
        refreshed=False,
        fell_back=~usable,
    )
    return adjusted, state._replace(count=state.count + 1), info


def plain_step(g: Vector, state: State, dtype: DTypeLike) -> Step:
    """Returns g as it is."""
    norm = jnp.sqrt(pytree.squared_norm(g, dtype))
    one, no = jnp.ones((), dtype), jnp.zeros((), bool)
    return g, SAMState(state.count + 1), StepInfo(norm, norm, 0 * one, one, refreshed=no, fell_back=no)


def _info(
    g_squared: Scalar,
    returned_squared: Scalar,
    along: Scalar,
    g_v_norm: Scalar,
    *,
    refreshed: bool,
    fell_back: Scalar,
) -> StepInfo:
    grad_norm, other_norm = jnp.sqrt(g_squared), jnp.sqrt(returned_squared)
    cosine = pytree.divide(pytree.divide(along, grad_norm), other_norm)
    is_g = fell_back | ~((grad_norm > 0) & jnp.isfinite(grad_norm))
    return StepInfo(
        grad_norm=grad_norm,
        returned_norm=jnp.where(fell_back, grad_norm, other_norm),
        g_v_norm=g_v_norm,
        cosine=jnp.where(is_g, jnp.ones_like(cosine), jnp.clip(cosine, -1.0, 1.0)),
        refreshed=jnp.full((), refreshed),
        fell_back=fell_back,
    )


def _after(flag: Scalar, old: Vector) -> Scalar:
    """Returns ``flag``, made to depend on the old g_v, which a refresh does not read.

    jit drops an argument that a program does not read, and its donated buffer with it; the buffers after it would then
    be paired with the wrong outputs, and copied.
    """
    after: Scalar = lax.optimization_barrier((flag, old))[0]
    return after
