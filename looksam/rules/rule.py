"""The machine all rules share: {which ball} × {when the second gradient is taken} × {what is done in between}.

A rule decides only which gradient the base optimizer sees. The numbers in brackets are the equations of
docs/maths.md.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from looksam.rules import validation, vector
from looksam.rules.batching import mean_over_groups
from looksam.rules.perturbation import Ball
from looksam.rules.vector import Scalar, Vector

Schedule = Callable[[jax.Array], ArrayLike]  # the rule's step count -> a value
GradientAt = Callable[[Vector], Vector]  # weights -> gradient, of one fixed minibatch
Groups = int | Literal["device"]  # how many parts of a batch climb on their own


class SAMState(NamedTuple):
    """Carried by rules that keep no g_v."""

    count: jax.Array  # type: ignore[assignment]  # steps taken so far


class LookSAMState(NamedTuple):
    """Carried by rules that reuse g_v."""

    count: jax.Array  # type: ignore[assignment]  # steps taken so far
    g_v: Vector  # the part of the last SAM gradient orthogonal to g; 0 where there is none to reuse
    g_v_norm: jax.Array  # ‖g_v‖, kept so that reuse steps need not read g_v twice


class StepInfo(NamedTuple):
    """What a step did. Scalars, for looking at only."""

    grad_norm: jax.Array  # ‖g‖ of the clean gradient
    returned_norm: jax.Array  # norm of the gradient the optimizer gets
    g_v_norm: jax.Array  # ‖g_v‖ found on this step or carried into it; 0 where there is none
    cosine: jax.Array  # between g and the returned gradient; 1 where g is 0, 0 where only the other is
    refreshed: jax.Array  # was the second gradient taken?
    fell_back: jax.Array  # was g returned because a norm was not finite?


class GradientFunction(Protocol):
    def __call__(
        self,
        value_and_grad: Callable[..., tuple[Any, Vector]],
        params: Vector,
        state: Any,
        *args: Any,
        refresh: bool | None = None,
    ) -> tuple[Any, Vector, Any, StepInfo]: ...


class TransformFunction(Protocol):
    def __call__(
        self, g: Vector, gradient_at: GradientAt, params: Vector, state: Any, *, refresh: bool | None = None
    ) -> tuple[Vector, Any, StepInfo]: ...


class Rule(NamedTuple):
    """A sharpness-aware rule: pure functions, hyper-parameters closed over.

    Attributes:
      init: ``init(params) -> state``, a pytree of arrays.
      gradient: ``gradient(value_and_grad, params, state, *args, refresh=None) -> (value, grads, state, info)``.
        ``value_and_grad(params, *args)`` is what ``jax.value_and_grad(loss, has_aux=...)`` returns; ``value`` is
        that of the clean pass and ``grads`` is for the base optimizer. ``refresh=None`` decides on the device by
        the carried count, inside one program. ``True`` or ``False`` decides at trace time, for loops that know
        the step: two programs, and the one for ``False`` holds a single gradient.
      transform: the same with the clean gradient at hand:
        ``transform(g, gradient_at, params, state, refresh=None) -> (grads, state, info)``.
      refreshes: ``refreshes(step) -> bool``, the value of ``refresh`` for a step counted on the host from 0.
      perturb: ``perturb(g, params, state) -> params``, w + ε, where the second gradient is taken.
    """

    init: Callable[[Vector], Any]
    gradient: GradientFunction
    transform: TransformFunction
    refreshes: Callable[[int], bool]
    perturb: Callable[[Vector, Vector, Any], Vector]


def make_rule(
    ball: Ball,
    *,
    rho: ArrayLike | Schedule,
    k: int,
    alpha: ArrayLike | Schedule | None = None,
    store_dtype: DTypeLike | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """Compose a rule. ``alpha=None``: steps between two refreshes use the plain gradient."""
    reuses = alpha is not None and k > 1  # k = 1 never reuses: the very program of SAM, nothing stored

    def init(params: Vector) -> SAMState | LookSAMState:
        validation.check_params(params)
        count = jnp.zeros((), jnp.int32)
        if not reuses:
            return SAMState(count)
        # zeros_like keeps each parameter's sharding
        g_v = jax.tree.map(lambda w: jnp.zeros_like(w, dtype=store_dtype), params)
        return LookSAMState(count, g_v, jnp.zeros((), vector.accumulator(params)))

    def perturb(g: Vector, params: Vector, state: Any) -> Vector:
        dtype = vector.accumulator(params)
        epsilon = ball(vector.cast(g, dtype), params, dtype)
        moved = vector.add_scaled(vector.cast(params, dtype), _value(rho, state.count, dtype), epsilon)
        return vector.cast_like(moved, params)

    def transform(
        g: Vector, gradient_at: GradientAt, params: Vector, state: Any, *, refresh: bool | None = None
    ) -> tuple[Vector, Any, StepInfo]:
        validation.no_groups(groups)
        return bent(g, lambda: gradient_at(perturb(g, params, state)), params, state, refresh)

    def bent(
        g: Vector, take_g_s: Callable[[], Vector], params: Vector, state: Any, refresh: bool | None
    ) -> tuple[Vector, Any, StepInfo]:
        validation.check_step(params, state, LookSAMState if reuses else SAMState, refresh)
        validation.check_gradient(params, g)
        dtype = vector.accumulator(params)

        def refresh_step() -> tuple[Vector, Any, StepInfo]:
            g_s = take_g_s()
            validation.check_gradient(params, g_s)
            return _refresh(g, g_s, state, dtype)

        def reuse_step() -> tuple[Vector, Any, StepInfo]:
            if not reuses:
                return _plain(g, state, dtype)
            return _reuse(_value(alpha, state.count, dtype), g, state, dtype)

        if refresh is None and k > 1:
            return lax.cond(state.count % k == 0, refresh_step, reuse_step)
        return reuse_step() if refresh is False else refresh_step()

    def gradient(
        value_and_grad: Callable[..., tuple[Any, Vector]],
        params: Vector,
        state: Any,
        *args: Any,
        refresh: bool | None = None,
    ) -> tuple[Any, Vector, Any, StepInfo]:
        # before any gradient is traced
        validation.check_step(params, state, LookSAMState if reuses else SAMState, refresh)
        if groups is not None and refresh is not False:
            return grouped(value_and_grad, params, state, args, refresh)
        value, g = validation.split_value_and_grad(value_and_grad(params, *args), params)

        def take_g_s() -> Vector:
            return value_and_grad(perturb(g, params, state), *args)[1]  # (7)

        return value, *bent(g, take_g_s, params, state, refresh)

    def grouped(
        value_and_grad: Callable[..., tuple[Any, Vector]],
        params: Vector,
        state: Any,
        args: tuple[Any, ...],
        refresh: bool | None,
    ) -> tuple[Any, Vector, Any, StepInfo]:
        def climb(*part: Any) -> tuple[Any, Vector, Vector]:
            value, g = validation.split_value_and_grad(value_and_grad(params, *part), params)
            return value, g, value_and_grad(perturb(g, params, state), *part)[1]

        def refresh_step() -> tuple[Any, Vector, Any, StepInfo]:
            count = validation.group_count(groups)
            value, g, g_s = mean_over_groups(climb, count, batch_argnums)(*args)
            return value, *bent(g, lambda: g_s, params, state, True)

        def reuse_step() -> tuple[Any, Vector, Any, StepInfo]:
            return gradient(value_and_grad, params, state, *args, refresh=False)

        if refresh is None and k > 1:
            return lax.cond(state.count % k == 0, refresh_step, reuse_step)
        return refresh_step()

    def refreshes(step: int) -> bool:
        return validation.host_step(step) % k == 0

    return Rule(init, gradient, transform, refreshes, perturb)


def _refresh(g: Vector, g_s: Vector, state: Any, dtype: DTypeLike) -> tuple[Vector, Any, StepInfo]:
    """Return g_s, keep the part of it that is orthogonal to g."""
    g_squared = vector.squared_norm(g, dtype)
    g_s_squared, along = vector.squared_norm_and_dot(g_s, g, dtype)
    # Guards look at square roots: XLA repeats a bare sum over all leaves, add by add, in what every leaf is fused into.
    g_norm, g_s_norm = jnp.sqrt(g_squared), jnp.sqrt(g_s_squared)
    usable = jnp.isfinite(g_norm) & jnp.isfinite(g_s_norm)

    # One projection over the whole vector. Where ‖g‖ is 0 there is no g_v.
    wide_g, wide_g_s = vector.cast(g, dtype), vector.cast(g_s, dtype)
    g_v = vector.add_scaled(wide_g_s, -vector.divide(along, g_squared), wide_g)  # (8)
    keeps_g_v = isinstance(state, LookSAMState)
    g_v = vector.cast_like(g_v, state.g_v if keeps_g_v else g)
    g_v_norm = jnp.sqrt(vector.squared_norm(g_v, dtype))
    rounding = 16 * jnp.finfo(dtype).eps * g_s_norm
    real = usable & jnp.isfinite(g_v_norm) & (g_v_norm > rounding) & (g_norm > 0)  # (9)
    g_v_norm = jnp.where(real, g_v_norm, jnp.zeros_like(g_v_norm))

    returned = vector.where(usable, vector.cast_like(g_s, g), g)  # (10)
    info = _info(g_squared, g_s_squared, along, g_v_norm, refreshed=True, fell_back=~usable)
    if keeps_g_v:
        real = _after(real, state.g_v)
        return returned, LookSAMState(state.count + 1, vector.zero_unless(real, g_v), g_v_norm), info
    return returned, SAMState(state.count + 1), info


def _reuse(alpha: Scalar, g: Vector, state: LookSAMState, dtype: DTypeLike) -> tuple[Vector, LookSAMState, StepInfo]:
    """One gradient: bend g towards the kept g_v by α ‖g‖."""
    g_squared = vector.squared_norm(g, dtype)
    factor = alpha * vector.divide(jnp.sqrt(g_squared), state.g_v_norm)  # 0 where no g_v is kept
    usable = jnp.isfinite(factor)
    factor = jnp.where(usable, factor, jnp.zeros_like(factor))
    wide_g, wide_v = vector.cast(g, dtype), vector.cast(state.g_v, dtype)
    bent = vector.cast_like(vector.add_scaled(wide_g, factor, wide_v), g)  # (11)
    if vector.is_narrower(g, dtype):  # rounding to a narrow dtype may overflow
        fits = jnp.isfinite(vector.squared_norm(bent, dtype))
        usable, bent = usable & fits, vector.where(fits, bent, g)

    # For the info alone, so that XLA drops it where the info is not used.
    g_squared, across = vector.squared_norm_and_dot(g, state.g_v, dtype)
    along = g_squared + factor * across
    bent_squared = along + factor * (across + factor * state.g_v_norm**2)
    info = _info(
        g_squared,
        jnp.maximum(bent_squared, jnp.zeros_like(along)),
        along,
        state.g_v_norm,
        refreshed=False,
        fell_back=~usable,
    )
    return bent, state._replace(count=state.count + 1), info


def _plain(g: Vector, state: SAMState, dtype: DTypeLike) -> tuple[Vector, SAMState, StepInfo]:
    """One gradient, returned as it is."""
    norm = jnp.sqrt(vector.squared_norm(g, dtype))
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
    cosine = vector.divide(vector.divide(along, grad_norm), other_norm)
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
    """``flag``, tied to the old g_v, which a refresh does not read.

    An argument that a program does not read is dropped by jit, its donated buffer with it; the buffers after it
    would then be paired with the wrong outputs, and copied.
    """
    return lax.optimization_barrier((flag, old))[0]


def _value(setting: Any, count: jax.Array, dtype: DTypeLike) -> Scalar:
    return jnp.asarray(setting(count) if callable(setting) else setting, dtype)
