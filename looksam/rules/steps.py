"""What a rule carries between steps, and the maths of its three kinds of steps: refresh, reuse and plain.

Each is a pure function ``(gradients, state, ...) -> (returned gradient, new state, info)``. Two more decide on the
device between a refresh and one of the others. The numbers in parentheses are the equations of docs/maths.md.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    g_v: Vector  # the part of the last SAM gradient orthogonal to g; of no meaning where its norm is 0
    g_v_norm: jax.Array  # ‖g_v‖, kept so that reuse steps need not read g_v twice; 0 where there is none to reuse


State = SAMState | LookSAMState


class GradientProducts(NamedTuple):
    """What the returned gradient of a refresh may depend on."""

    g_squared: Scalar  # ‖g‖²
    along: Scalar  # ⟨g, g_s⟩
    g_s_squared: Scalar  # ‖g_s‖²
    g_v_norm: Scalar  # ‖g_v‖; 0 where g and g_s are parallel up to rounding, or one of them is 0


# (products, step count) -> (a, b): a refresh returns a g_s + b g. None: g_s itself.
RefreshWeights = Callable[[GradientProducts, jax.Array], tuple[Scalar, Scalar]] | None
# (‖g‖, ‖g_v‖, step count) -> c: a step between two refreshes returns g + c g_v.
ReuseWeight = Callable[[Scalar, Scalar, jax.Array], Scalar]


class StepInfo(NamedTuple):
    """Scalars that describe a step, for monitoring only."""

    grad_norm: jax.Array  # ‖g‖ of the clean gradient
    returned_norm: jax.Array  # norm of the gradient that the optimizer gets
    g_v_norm: jax.Array  # ‖g_v‖, computed on this step or carried into it; 0 where there is none
    cosine: jax.Array  # between g and the returned gradient; 1 where g is 0, 0 where only the other is
    refreshed: jax.Array  # whether a gradient was taken at the perturbed parameters
    fell_back: jax.Array  # whether g was returned because a norm was not finite


Step = tuple[Vector, State, StepInfo]  # the returned gradient, the new state and what the step did


def initial_state(params: Vector, *, keeps_g_v: bool, store_dtype: DTypeLike | None) -> State:
    """Returns the state before the first step, with each g_v sharded as its parameter."""
    count = jnp.zeros((), jnp.int32)
    if not keeps_g_v:
        return SAMState(count)
    g_v = jax.tree.map(lambda w: jnp.zeros_like(w, dtype=store_dtype), params)  # zeros_like keeps the sharding
    return LookSAMState(count, g_v, jnp.zeros((), pytree.accumulator(params)))


def initial_info(params: Vector) -> StepInfo:
    """Returns the info before the first step, with the dtypes of all others."""
    zero, no = jnp.zeros((), pytree.accumulator(params)), jnp.zeros((), bool)
    return StepInfo(zero, zero, zero, jnp.ones_like(zero), refreshed=no, fell_back=no)


def refresh_step(g: Vector, g_s: Vector, weights: RefreshWeights, state: State, dtype: DTypeLike) -> Step:
    """Returns g_s, or what the weights make of it; keeps its part orthogonal to g if the state has a place for it."""
    g_squared = pytree.squared_norm(g, dtype)
    part = _orthogonal_part(g, g_s, g_squared, state.g_v if isinstance(state, LookSAMState) else g, dtype)
    returned_squared, along, usable = part.g_s_squared, part.along, part.usable
    if weights is not None:
        a, b = _refresh_weights(weights, g_squared, part, state.count)
        combined = pytree.cast_like(_combined(a, g_s, b, g, dtype), g_s)
        g_s = pytree.where(b == 0, g_s, combined)  # to the bit where g has no weight
        returned_squared, along = _combined_products(a, b, part.g_s_squared, part.along, g_squared)
        usable = usable & jnp.isfinite(jnp.sqrt(returned_squared))  # see ``_orthogonal_part``
        if pytree.is_narrower(g_s, dtype):  # rounding to a narrow dtype may overflow
            usable = usable & jnp.isfinite(jnp.sqrt(pytree.squared_norm(g_s, dtype)))
    returned = pytree.where(usable, pytree.cast_like(g_s, g), g)  # (10)
    info = _info(g_squared, returned_squared, along, part.norm, refreshed=True, fell_back=~usable)
    if not isinstance(state, LookSAMState):
        return returned, SAMState(state.count + 1), info
    exists = _after(part.norm > 0, state.g_v)
    return returned, LookSAMState(state.count + 1, pytree.zero_unless(exists, part.g_v), part.norm), info


def _combined(a: Scalar, x: Vector, b: Scalar, y: Vector, dtype: DTypeLike) -> Vector:
    """Returns a x + b y."""
    return pytree.add_scaled(pytree.scale(a, pytree.cast(x, dtype)), b, pytree.cast(y, dtype))


def _combined_products(
    a: Scalar, b: Scalar, x_squared: Scalar, across: Scalar, y_squared: Scalar
) -> tuple[Scalar, Scalar]:
    """Returns ‖a x + b y‖² and ⟨y, a x + b y⟩ from ‖x‖², ⟨x, y⟩ and ‖y‖²."""
    along = b * y_squared + a * across
    squared = b * along + a * (b * across + a * x_squared)
    return jnp.maximum(squared, jnp.zeros_like(squared)), along


class _OrthogonalPart(NamedTuple):
    """The SAM gradient, g_s = c g + g_v, in its parts along and orthogonal to g."""

    c: Scalar  # 0 where g has no direction, or is not usable
    g_v: Vector
    norm: Scalar  # ‖g_v‖; 0 where g_v is only rounding, not finite, or has no direction to be orthogonal to
    usable: Scalar  # whether g and g_s are finite
    g_s_squared: Scalar
    along: Scalar  # ⟨g, g_s⟩


def _orthogonal_part(
    g: Vector, g_s: Vector, g_squared: Scalar, like: Vector, dtype: DTypeLike, *, zeroed: bool = False
) -> _OrthogonalPart:
    """Projects g_s off g, once over the whole vector; g_v gets the dtypes of ``like``.

    With ``zeroed``, g_v is 0 where g or g_s is not finite. Whoever keeps g_v zeroes it: here, or later by its norm.
    """
    g_s_squared, along = pytree.squared_norm_and_dot(g_s, g, dtype)
    # Guards look at square roots: XLA repeats a bare sum over all leaves, add by add, in what every leaf is fused into.
    g_norm, g_s_norm = jnp.sqrt(g_squared), jnp.sqrt(g_s_squared)
    usable = jnp.isfinite(g_norm) & jnp.isfinite(g_s_norm)
    c = pytree.divide(along, g_squared)
    has_direction = usable & (g_norm > 0) & jnp.isfinite(c)  # of g
    c = jnp.where(has_direction, c, jnp.zeros_like(c))
    g_v = pytree.add_scaled(pytree.cast(g_s, dtype), -c, pytree.cast(g, dtype))  # (8)
    g_v = pytree.cast_like(g_v, like)
    if zeroed:  # before the norm is taken, or XLA computes g_v twice
        g_v = pytree.zero_unless(usable, g_v)
    norm = jnp.sqrt(pytree.squared_norm(g_v, dtype))
    rounding = 16 * jnp.finfo(dtype).eps * g_s_norm
    exists = has_direction & jnp.isfinite(norm) & (norm > rounding)  # (9)
    return _OrthogonalPart(c, g_v, jnp.where(exists, norm, jnp.zeros_like(norm)), usable, g_s_squared, along)


def _refresh_weights(
    weights: Callable[[GradientProducts, jax.Array], tuple[Scalar, Scalar]],
    g_squared: Scalar,
    part: _OrthogonalPart,
    count: jax.Array,
) -> tuple[Scalar, Scalar]:
    """Returns the weights of g_s and of g in what a refresh returns, as arrays."""
    a, b = weights(GradientProducts(g_squared, part.along, part.g_s_squared, part.norm), count)
    return jnp.asarray(a, g_squared.dtype), jnp.asarray(b, g_squared.dtype)


def reuse_step(g: Vector, weight: ReuseWeight, state: LookSAMState, dtype: DTypeLike) -> Step:
    """Returns g with the kept g_v added to it."""
    g_squared = pytree.squared_norm(g, dtype)
    factor, usable = _reuse_factor(g_squared, weight, state.g_v_norm, state.count)
    wide_g, wide_v = pytree.cast(g, dtype), pytree.cast(state.g_v, dtype)
    adjusted = pytree.cast_like(pytree.add_scaled(wide_g, factor, wide_v), g)
    if pytree.is_narrower(g, dtype):  # rounding to a narrow dtype may overflow
        fits = jnp.isfinite(pytree.squared_norm(adjusted, dtype))
        usable, adjusted = usable & fits, pytree.where(fits, adjusted, g)
    info = _combination_info(g, state, jnp.ones((), dtype), factor, refreshed=False, fell_back=~usable)
    return adjusted, state._replace(count=state.count + 1), info


def _reuse_factor(g_squared: Scalar, weight: ReuseWeight, g_v_norm: Scalar, count: jax.Array) -> tuple[Scalar, Scalar]:
    """Returns the factor of g_v and whether it is finite; 0 where it is not, and where no g_v is kept."""
    factor = jnp.asarray(weight(jnp.sqrt(g_squared), g_v_norm, count), g_squared.dtype)
    factor = jnp.where(g_v_norm > 0, factor, jnp.zeros_like(factor))
    usable = jnp.isfinite(factor)
    return jnp.where(usable, factor, jnp.zeros_like(factor)), usable


def plain_step(g: Vector, state: State, dtype: DTypeLike) -> Step:
    """Returns g as it is; a g_v that is kept counts as none from here on."""
    norm = jnp.sqrt(pytree.squared_norm(g, dtype))
    one, no = jnp.ones((), dtype), jnp.zeros((), bool)
    state = state._replace(count=state.count + 1)
    if isinstance(state, LookSAMState):
        state = state._replace(g_v_norm=jnp.zeros_like(state.g_v_norm))
    return g, state, StepInfo(norm, norm, 0 * one, one, refreshed=no, fell_back=no)


# --- decided on the device ----------------------------------------------------------------------------------------

# A loop of at most one iteration instead of lax.cond: XLA updates what a loop carries in place, and copies what a
# branch returns. It has no reverse-mode derivative.


def refresh_or_reuse_step(
    g: Vector,
    second_gradient: Callable[[Vector], Vector],
    due: Scalar,
    weights: RefreshWeights,
    weight: ReuseWeight,
    state: LookSAMState,
    dtype: DTypeLike,
) -> Step:
    """Returns a g + b g_v: a refresh replaces g_v first, and then g_s = c g + g_v; a reuse is as in ``reuse_step``.

    ``second_gradient(g)`` is the gradient at the perturbed parameters. All vectors have to be of ``dtype``: g_s comes
    back from g_v, up to rounding.
    """
    g_squared = pytree.squared_norm(g, dtype)

    def refresh(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        # Without the barrier XLA may take the second gradient before the loop, on every step.
        due, now = lax.optimization_barrier((carry[0], g))
        # g_v is kept as it is even where its norm counts as 0: g_s comes back from it, and no step reuses it.
        part = _orthogonal_part(now, second_gradient(now), g_squared, state.g_v, dtype, zeroed=True)
        a, b, usable = part.c, one, part.usable
        if weights is not None:  # of g_s and g; in terms of g and g_v
            b, of_g = _refresh_weights(weights, g_squared, part, state.count)
            a = jnp.where(of_g == 0, b * part.c, b * part.c + of_g)
            squared, _ = _combined_products(b, of_g, part.g_s_squared, part.along, g_squared)
            usable = usable & jnp.isfinite(jnp.sqrt(squared))
        return ~due, part.g_v, part.norm, a, b, usable

    one = jnp.ones((), dtype)
    start = due, state.g_v, state.g_v_norm, one, one, jnp.ones((), bool)
    _, g_v, g_v_norm, a, b, refreshable = lax.while_loop(lambda carry: carry[0], refresh, start)
    factor, reusable = _reuse_factor(g_squared, weight, g_v_norm, state.count)
    a = jnp.where(due & refreshable, a, one)
    b = jnp.where(due, jnp.where(refreshable, b, jnp.zeros_like(b)), factor)
    returned = jax.tree.map(lambda x, v: (a * x + b * v).astype(x.dtype), g, g_v)
    state = LookSAMState(state.count + 1, g_v, g_v_norm)
    fell_back = ~jnp.where(due, refreshable, reusable)
    return returned, state, _combination_info(g, state, a, b, refreshed=due, fell_back=fell_back)


def refresh_or_plain_step(
    g: Vector,
    second_gradient: Callable[[Vector], Vector],
    due: Scalar,
    weights: RefreshWeights,
    state: State,
    dtype: DTypeLike,
) -> Step:
    """Returns g as it is, unless a refresh is due."""

    def refresh(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        due, g, _ = lax.optimization_barrier(carry)
        returned, _, info = refresh_step(g, second_gradient(g), weights, state, dtype)
        return ~due, returned, info

    _, new_state, info = plain_step(g, state, dtype)
    _, returned, info = lax.while_loop(lambda carry: carry[0], refresh, (due, g, info))
    return returned, new_state, info


# --- info ---------------------------------------------------------------------------------------------------------


def _combination_info(
    g: Vector, state: LookSAMState, a: Scalar, b: Scalar, *, refreshed: bool | Scalar, fell_back: Scalar
) -> StepInfo:
    """Describes a step that returns a g + b g_v. XLA drops the pass over both where the info is not used."""
    dtype = a.dtype
    g_squared = pytree.squared_norm(g, dtype)
    g_v_squared, across = pytree.squared_norm_and_dot(state.g_v, g, dtype)
    returned_squared, along = _combined_products(b, a, g_v_squared, across, g_squared)
    return _info(g_squared, returned_squared, along, state.g_v_norm, refreshed=refreshed, fell_back=fell_back)


def _info(
    g_squared: Scalar,
    returned_squared: Scalar,
    along: Scalar,
    g_v_norm: Scalar,
    *,
    refreshed: bool | Scalar,
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
        refreshed=jnp.asarray(refreshed),
        fell_back=fell_back,
    )


def _after(flag: Scalar, old: Vector) -> Scalar:
    """Returns ``flag``, made to depend on the old g_v, which a refresh does not read.

    jit drops an argument that a program does not read, and its donated buffer with it; the buffers after it would then
    be paired with the wrong outputs, and copied.
    """
    after: Scalar = lax.optimization_barrier((flag, old))[0]
    return after
