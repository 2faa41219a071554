"""A rule and a base optimizer combined into one Optax transformation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from looksam.rules import Rule


class SharpnessAwareState(NamedTuple):
    """The state of ``as_optimizer``."""

    rule: Any  # the state of the rule
    base: Any  # the state of the base optimizer


def as_optimizer(rule: Rule, tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Wraps ``tx`` so that it steps along the rule's gradient; a drop-in replacement for Optax's opaque SAM.

    ``update(updates, state, params, grad_fn=..., refresh=None)`` takes the clean gradient as ``updates``. On refresh
    steps it calls ``grad_fn(params, 0)`` once, for the gradient of the same minibatch at the perturbed parameters; on
    reuse steps never. ``refresh`` is that of ``Rule.gradient``. Other keyword arguments are passed to ``tx``.

    Args:
      rule: any of looksam's rules.
      tx: the base optimizer, with its clipping, weight decay and schedules.

    Example:
      >>> import jax, jax.numpy as jnp, looksam, optax
      >>> grad = jax.grad(lambda w: jnp.sum(w ** 2))
      >>> tx = looksam.as_optimizer(looksam.sam(rho=0.5), optax.sgd(0.1))
      >>> params = jnp.array([3.0, 4.0])
      >>> updates, state = tx.update(grad(params), tx.init(params), params, grad_fn=lambda w, _: grad(w))
      >>> print(optax.apply_updates(params, updates))  # w - 0.1 * 2 (w + 0.5 g/‖g‖)
      [2.34 3.12]

    This differs from ``optax.contrib.sam(..., opaque_mode=True)``: a zero gradient gives no NaN, and there is no axis
    name, since under ``jit`` over global arrays the gradients are global already.
    """
    base = optax.with_extra_args_support(tx)

    def init(params: optax.Params) -> SharpnessAwareState:
        return SharpnessAwareState(rule.init(params), base.init(params))

    def update(
        updates: optax.Updates,
        state: SharpnessAwareState,
        params: optax.Params | None = None,
        *,
        grad_fn: Callable[[optax.Params, int], optax.Updates] | None = None,
        refresh: bool | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, SharpnessAwareState]:
        if params is None:
            raise ValueError("params is None; call update(updates, state, params, grad_fn=...).")
        if grad_fn is None and refresh is not False:
            raise ValueError("grad_fn is None; pass grad_fn=lambda params, _: gradient of the loss on this minibatch.")

        def gradient_at(weights: optax.Params) -> optax.Updates:
            assert grad_fn is not None
            return grad_fn(weights, 0)

        grads, rule_state, _ = rule.transform(updates, gradient_at, params, state.rule, refresh=refresh)
        new_updates, base_state = base.update(grads, state.base, params, **extra)
        return new_updates, SharpnessAwareState(rule_state, base_state)

    return optax.GradientTransformationExtraArgs(init, update)
