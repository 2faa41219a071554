"""The rule: chooses, on every step, the gradient that the base optimizer sees.

A rule is {perturbation} × {on which steps the second gradient is taken} × {what a refresh returns} × {what the other
steps do}. ``compose`` puts the four together, and the factories of ``family.py`` name the combinations that have a
name; ``steps.py`` has the maths of each kind of step. Here is what happens in a step, in order: take the gradient,
decide between refresh and reuse, perturb, take the second gradient.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from looksam.rules import pytree, steps, validation
from looksam.rules.batching import Groups, group_count, group_gradients
from looksam.rules.choices import BetweenGradient, RefreshGradient, ScalarOrSchedule, value_at
from looksam.rules.perturbation import ByPath, Perturbation
from looksam.rules.pytree import Vector
from looksam.rules.steps import LookSAMState, ReuseWeight, SAMState, State, Step, StepInfo
from looksam.schedule import RefreshSchedule

ValueAndGrad = Callable[..., tuple[Any, Vector]]  # (params, *args) -> (value, gradient), as from jax.value_and_grad
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class FactoryCall(NamedTuple):
    """The call that made a rule, such as ``look_sam(rho=0.1, alpha=0.7, k=5)``, for ``repr``."""

    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        shown = {name: getattr(value, "__qualname__", repr(value)) for name, value in self.arguments.items()}
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in shown.items())})"


@dataclass(frozen=True, eq=False, repr=False)
class Rule:
    """A sharpness-aware rule: pure functions of parameters, gradients and state.

    Create one with a factory such as ``looksam.look_sam`` or with ``looksam.rules.compose``, which check the
    hyper-parameters. ``refresh``, an argument of ``gradient`` and ``transform``, says whether the second gradient is
    taken. ``None`` decides on the device by the carried count, inside one program. ``True`` or ``False`` decides at
    trace time, for loops that know the step: two programs, and the one for ``False`` contains a single gradient.

    A rule is data: it shows its hyper-parameters, and can be pickled if the functions that it was given can.
    """

    perturbation: Perturbation
    rho: ScalarOrSchedule  # radius of the perturbation
    schedule: RefreshSchedule
    refresh_gradient: RefreshGradient
    between: BetweenGradient
    is_perturbed: ByPath | None = None  # which parameters are; None: all
    groups: Groups | None = None  # parts of the batch that are perturbed separately; None: the whole batch as one
    batch_argnums: Sequence[int] | None = None  # the arguments that are split into groups; None: all
    decides_by_cond: bool = False  # with ``refresh=None``; see ``differentiable``
    checks_refresh: bool = False  # see ``checked``
    call: FactoryCall | None = None  # that made the rule

    def __repr__(self) -> str:
        changes = {".differentiable()": self.decides_by_cond, ".checked()": self.checks_refresh}
        made = object.__repr__(self) if self.call is None else str(self.call)
        return made + "".join(change for change, is_made in changes.items() if is_made)

    def init(self, params: Vector) -> State:
        """Returns the state before the first step, a pytree of arrays."""
        validation.check_params(params)
        self._perturbed_leaves(params)  # raises if there are none
        return steps.initial_state(
            params, keeps_g_v=self._reuse_weight is not None, store_dtype=self.between.store_dtype
        )

    def refreshes(self, step: int) -> bool:
        """Returns the value of ``refresh`` for a step that the host counts from 0."""
        return bool(self.schedule.refreshes(validation.host_step(step)))

    def is_active(self, step: int) -> bool:
        """Returns whether a step, counted from 0 on the host, is between ``start`` and ``stop``.

        On the others the base optimizer gets the plain gradient; ``plain`` is their step without what the rule carries.
        """
        return bool(self.schedule.is_active(validation.host_step(step)))

    def gradient(
        self, value_and_grad: ValueAndGrad, params: Vector, state: Any, *args: Any, refresh: bool | None = None
    ) -> tuple[Any, Vector, State, StepInfo]:
        """Returns ``(value, grads, state, info)``, with ``grads`` for the base optimizer.

        ``value_and_grad(params, *args)`` is the function that ``jax.value_and_grad(loss, has_aux=...)`` returns, and
        ``value`` is that of the clean pass.
        """
        self._check(params, state, refresh)  # before any gradient is traced
        clean = functools.partial(checked_value_and_grad, value_and_grad)
        groups = self.groups
        if groups is None:
            value, g = clean(params, *args)
            gradient_at = lambda weights: value_and_grad(weights, *args)[1]
            return value, *self.transform(g, gradient_at, params, state, refresh=refresh)
        self._check_refresh(state, refresh)
        state = self._without_old_g_v(state)

        def refresh_step() -> tuple[Any, Vector, State, StepInfo]:
            perturb = lambda g, params: self.perturb(g, params, state)
            gradients = group_gradients(clean, perturb, group_count(groups), self.batch_argnums)
            value, g, g_s = gradients(params, *args)
            weights = self.refresh_gradient.weights
            return value, *steps.refresh_step(g, g_s, weights, state, pytree.accumulator(params))

        def reuse_step() -> tuple[Any, Vector, State, StepInfo]:
            value, g = clean(params, *args)
            return value, *self._reuse(g, params, state)

        return self._refresh_or_reuse(refresh_step, reuse_step, state, refresh)

    def transform(
        self,
        g: Vector,
        gradient_at: Callable[[Vector], Vector],
        params: Vector,
        state: Any,
        *,
        refresh: bool | None = None,
    ) -> Step:
        """Returns ``(grads, state, info)`` from the clean gradient ``g``.

        ``gradient_at(weights)`` is the gradient of the same minibatch at other weights; reuse steps do not call it.
        """
        validation.no_groups(self.groups)
        self._check(params, state, refresh)
        self._check_refresh(state, refresh)
        validation.check_gradient(params, g)
        state = self._without_old_g_v(state)

        def second_gradient(g: Vector) -> Vector:
            weights = self.perturb(g, params, state)
            with validation.unchanged(params):
                g_s = gradient_at(weights)  # (7)
            validation.check_gradient(params, g_s)
            return g_s

        dtype, weights, weight = pytree.accumulator(params), self.refresh_gradient.weights, self._reuse_weight
        if refresh is None and not self.schedule.refreshes_always and not self.decides_by_cond:
            due = self.schedule.refreshes(state.count)
            if weight is None:
                return steps.refresh_or_plain_step(g, second_gradient, due, weights, state, dtype)
            if not pytree.is_narrower((g, state.g_v), dtype):
                return steps.refresh_or_reuse_step(g, second_gradient, due, weights, weight, state, dtype)

        def refresh_step() -> Step:
            return steps.refresh_step(g, second_gradient(g), weights, state, dtype)

        return self._refresh_or_reuse(refresh_step, lambda: self._reuse(g, params, state), state, refresh)

    def plain(self, g: Vector, params: Vector, state: Any) -> Step:
        """Returns ``(grads, state, info)`` of a step outside the window, with ``g`` as it is.

        A static step with ``refresh=False`` serves these steps too, but reads g_v, with a weight of 0. This one does
        not: a third program, as fast as the base optimizer's, for loops that ask ``is_active`` on the host.
        """
        self._check(params, state, False)
        if self.checks_refresh:
            validation.check_inactive(self.schedule.is_active, state.count)
        validation.check_gradient(params, g)
        return self._plain(g, state, pytree.accumulator(params))

    def differentiable(self) -> "Rule":
        """Returns the rule with traced steps that have a reverse-mode derivative, for meta-gradients.

        With ``refresh=None`` a step then decides by ``lax.cond`` instead of a loop of at most one iteration. This takes
        more time and memory where the parameters are many and the batch is small. Static steps have the derivative
        anyway.
        """
        return dataclasses.replace(self, decides_by_cond=True)

    def checked(self) -> "Rule":
        """Returns the rule with a check, for debugging, that ``refresh`` agrees with the count that the state carries.

        A loop that passes ``refresh=rule.refreshes(i)`` counts its steps itself. Where its count and that of the state
        differ, as after a checkpoint of which only one was restored, the step raises a ``ValueError``. Under ``jit``
        the check is a host callback, and JAX reports the error as a ``jax.errors.JaxRuntimeError``.

        Example:
          >>> import jax, looksam
          >>> rule = looksam.look_sam(rho=0.1, k=5).checked()
          >>> value_and_grad = jax.value_and_grad(lambda w: w**2)
          >>> rule.gradient(value_and_grad, 3.0, rule.init(3.0), refresh=False)  # doctest: +ELLIPSIS
          Traceback (most recent call last):
          ValueError: refresh=False on step 0, by the count in state, and that step refreshes; ...
        """
        return dataclasses.replace(self, checks_refresh=True)

    def perturb(self, g: Vector, params: Vector, state: Any) -> Vector:
        """Returns the perturbed parameters w + ε, where the second gradient is taken."""
        dtype, keep = pytree.accumulator(params), self._perturbed_leaves(params)
        part = pytree.selected(params, keep)
        direction = self.perturbation(pytree.cast(pytree.selected(g, keep), dtype), part, dtype)
        moved = pytree.add_scaled(pytree.cast(part, dtype), value_at(self.rho, state.count, dtype), direction)
        return pytree.filled(pytree.cast_like(moved, part), params, keep)

    @property
    def _reuse_weight(self) -> ReuseWeight | None:
        # With k = 1 no step reuses: the program is exactly SAM's, and nothing is stored.
        return self.between.weight if self.schedule.k > 1 else None

    def _refresh_or_reuse(
        self, refresh_step: Callable[[], Result], reuse_step: Callable[[], Result], state: State, refresh: bool | None
    ) -> Result:
        """Runs one of the two: the one that ``refresh`` names, or with None the one that is due by the count."""
        if refresh is None and not self.schedule.refreshes_always:
            result: Result = lax.cond(self.schedule.refreshes(state.count), refresh_step, reuse_step)
            return result
        return reuse_step() if refresh is False else refresh_step()

    def _reuse(self, g: Vector, params: Vector, state: State) -> Step:
        dtype, weight = pytree.accumulator(params), self._reuse_weight
        if weight is not None and isinstance(state, LookSAMState):
            return steps.reuse_step(g, weight, state, dtype)
        return self._plain(g, state, dtype)

    def _plain(self, g: Vector, state: Any, dtype: DTypeLike) -> Step:
        return steps.plain_step(g, state, dtype)

    def _without_old_g_v(self, state: State) -> State:
        """Returns the state without g_v on a step outside the window, so that nothing is reused there."""
        if self.schedule.is_always_active or not isinstance(state, LookSAMState):
            return state
        norm = jnp.where(self.schedule.is_active(state.count), state.g_v_norm, jnp.zeros_like(state.g_v_norm))
        return state._replace(g_v_norm=norm)

    def _perturbed_leaves(self, params: Vector) -> list[bool]:
        """Returns, for each parameter, whether it is perturbed."""
        return validation.perturbed_leaves(params, self.is_perturbed)

    @property
    def _state_type(self) -> type:
        return SAMState if self._reuse_weight is None else LookSAMState

    def _check(self, params: Vector, state: Any, refresh: Any) -> None:
        validation.check_step(params, state, self._state_type, refresh)

    def _check_refresh(self, state: Any, refresh: bool | None) -> None:
        if self.checks_refresh and refresh is not None:
            validation.check_refresh(refresh, self.schedule.refreshes, state.count)


def checked_value_and_grad(value_and_grad: ValueAndGrad, params: Vector, *args: Any) -> tuple[Any, Vector]:
    """Returns the value and the gradient, after a check of what the user's function returned."""
    return validation.split_value_and_grad(value_and_grad(params, *args), params)


def shows_call(factory: Callable[Arguments, Rule]) -> Callable[Arguments, Rule]:
    """Makes the rules of a factory show the call that made them: its main arguments, and of the others those set."""
    signature = inspect.signature(factory)
    options = {name: p.default for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY}

    def is_default(name: str, value: Any) -> bool:
        default = options[name]
        return value is default or (isinstance(value, int | float | str) and bool(value == default))

    @functools.wraps(factory)
    def make(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Rule:
        rule, bound = factory(*args, **kwargs), signature.bind(*args, **kwargs)
        bound.apply_defaults()
        shown = {name: x for name, x in bound.arguments.items() if name not in options or not is_default(name, x)}
        return dataclasses.replace(rule, call=FactoryCall(factory.__name__, shown))

    return make
