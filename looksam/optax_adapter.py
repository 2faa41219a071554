"""A rule and a base optimizer combined into one Optax transformation."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from looksam.rules import Rule, StepInfo
from looksam.rules.pytree import path_string
from looksam.rules.steps import initial_info


class SharpnessAwareState(NamedTuple):
    """The state of ``as_optimizer``."""

    rule: Any  # the state of the rule
    base: Any  # the state of the base optimizer
    info: StepInfo  # what the last step did; norms and cosine are None without ``full_info``


def as_optimizer(
    rule: Rule, tx: optax.GradientTransformation, *, full_info: bool = False
) -> optax.GradientTransformationExtraArgs:
    """Wraps ``tx`` so that it steps along the rule's gradient; a drop-in replacement for Optax's opaque SAM.

    ``update(updates, state, params, grad_fn=..., refresh=None)`` takes the clean gradient as ``updates``. On refresh
    steps it calls ``grad_fn(params, 0)`` once, for the gradient of the same minibatch at the perturbed parameters; on
    reuse steps never. ``refresh`` is that of ``Rule.gradient``. Other keyword arguments are passed to ``tx``.

    ``state.info.refreshed`` and ``state.info.fell_back`` describe the last step; inside other transformations,
    ``optax.tree.get(state, "info")`` finds them.

    Clipping, accumulation, masks and other transformations belong into ``tx``, where they see the gradient that the
    rule returns. Around ``as_optimizer`` they would see one of its two gradients, or a part of the parameters; where
    that matters they raise an error: ``optax.MultiSteps``, ``masked``, ``multi_transform``, ``flatten``, and whatever
    comes before it in an ``optax.chain``.

    Args:
      rule: any of looksam's rules.
      tx: the base optimizer, with its clipping, weight decay and schedules.
      full_info: also fill in the norms and the cosine of ``state.info``, which takes another pass over the gradients.

    Example:
      >>> import jax, jax.numpy as jnp, looksam, optax
      >>> grad = jax.grad(lambda w: jnp.sum(w ** 2))
      >>> tx = looksam.as_optimizer(looksam.sam(rho=0.5), optax.sgd(0.1))
      >>> params = jnp.array([3.0, 4.0])
      >>> updates, state = tx.update(grad(params), tx.init(params), params, grad_fn=lambda w, _: grad(w))
      >>> print(optax.apply_updates(params, updates))  # w - 0.1 * 2 (w + 0.5 g/‖g‖)
      [2.34 3.12]
      >>> print(state.info.fell_back)
      False

    This differs from ``optax.contrib.sam(..., opaque_mode=True)``: a zero gradient gives no NaN, and there is no axis
    name, since under ``jit`` over global arrays the gradients are global already.
    """
    base = optax.with_extra_args_support(tx)

    def init(params: optax.Params) -> SharpnessAwareState:
        _check_callers()
        _check_complete(params)
        return SharpnessAwareState(rule.init(params), base.init(params), _shown(initial_info(params), full_info))

    def update(
        updates: optax.Updates,
        state: SharpnessAwareState,
        params: optax.Params | None = None,
        *,
        grad_fn: Callable[[optax.Params, int], optax.Updates] | None = None,
        refresh: bool | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, SharpnessAwareState]:
        _check_callers()
        if params is None:
            raise ValueError("params is None; call update(updates, state, params, grad_fn=...).")
        if grad_fn is None and refresh is not False:
            raise ValueError(
                "grad_fn is None; pass grad_fn=lambda params, _: gradient of the loss on this minibatch. (In Flax: "
                "apply_gradients of looksam.TrainState takes it, and NNX modules use looksam.NNXRule.)"
            )
        _check_complete(params)

        def gradient_at(weights: optax.Params) -> optax.Updates:
            assert grad_fn is not None
            return grad_fn(weights, 0)

        grads, rule_state, info = rule.transform(updates, gradient_at, params, state.rule, refresh=refresh)
        new_updates, base_state = base.update(grads, state.base, params, **extra)
        return new_updates, SharpnessAwareState(rule_state, base_state, _shown(info, full_info))

    return optax.GradientTransformationExtraArgs(init, update)


def _shown(info: StepInfo, full_info: bool) -> StepInfo:
    """Returns the info that is kept; XLA drops the pass over the gradients behind what is not."""
    unknown: Any = None
    if full_info:
        return info
    return StepInfo(unknown, unknown, unknown, unknown, refreshed=info.refreshed, fell_back=info.fell_back)


# --- transformations of Optax around as_optimizer -----------------------------------------------------------------


def _codes(*functions: Any) -> frozenset[Any]:
    return frozenset(function.__code__ for function in functions)


_MULTI_STEPS = _codes(optax.MultiSteps.init, optax.MultiSteps.update)
_FLATTEN = _codes(*optax.flatten(optax.identity()))
_CHAIN = _codes(optax.chain(optax.identity()).update, optax.named_chain(("identity", optax.identity())).update)


def _check_callers() -> None:
    """Raises if a transformation that calls this one changes the clean gradient and not the second, or the parameters.

    Optax passes on nothing by which to know them, and the gradients would be wrong without a message. So this looks
    for their functions on the stack, which takes microseconds, and under jit happens while the step is traced.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in _MULTI_STEPS:
            raise ValueError(
                "optax.MultiSteps around as_optimizer would combine the mean gradient of all micro-batches with the "
                "second gradient of the last one; call looksam.accumulated(value_and_grad, microbatches) on the whole "
                "batch instead, which gives both gradients of all of it."
            )
        if frame.f_code in _FLATTEN:
            raise ValueError(
                "optax.flatten around as_optimizer would call grad_fn with one flat vector; put it inside: "
                "as_optimizer(rule, optax.flatten(tx))."
            )
        if frame.f_code in _CHAIN and frame.f_locals.get("new_state"):
            raise ValueError(
                "as_optimizer comes after another transformation in optax.chain, which changes the clean gradient "
                "and not the second one; put it inside: as_optimizer(rule, optax.chain(..., tx))."
            )
        frame = frame.f_back


def _check_complete(params: optax.Params) -> None:
    """Raises if ``params`` are the part that a mask left."""

    def is_masked(x: Any) -> bool:
        return isinstance(x, optax.MaskedNode)

    for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=is_masked):
        if is_masked(leaf):
            raise ValueError(
                f"parameter '{path_string(path)}' is masked: optax.masked or optax.multi_transform around "
                "as_optimizer hides it, and grad_fn needs all parameters; put the mask inside: as_optimizer(rule, "
                "optax.masked(tx, mask)). Which parameters are perturbed is set by the rule's perturb=."
            )
