"""Training Flax models with a rule: NNX modules, which are updated in place, and the TrainState of Linen."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import nnx
from flax.training import train_state

from looksam.rules import Rule, StepInfo
from looksam.rules.steps import initial_info


class RuleVariable(nnx.Variable):
    """An array of a rule's state."""


class NNXRule(nnx.Pytree):
    """A rule for a Flax NNX module: ``value_and_grad`` takes the place of ``nnx.value_and_grad``.

    It holds the state of the rule, so pass it to ``nnx.jit`` along with the model and the optimizer. Parameters are
    only changed by the optimizer: both gradients are taken in copies of the module. Everything else that a forward
    pass changes, such as BatchNorm statistics and the counts of random keys, comes from the clean pass, and both passes
    draw the same dropout masks. (MSAM's only pass is at the perturbed parameters.)

    Args:
      rule: any of looksam's rules without ``groups``.
      model: the module.
      wrt: which variables are the parameters, as for ``nnx.Optimizer``.

    Attributes:
      info: the ``StepInfo`` of the last step.

    Example:
      >>> import jax.numpy as jnp, looksam, optax
      >>> from flax import nnx
      >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
      >>> optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
      >>> rule = looksam.NNXRule(looksam.look_sam(rho=0.1, k=5), model)
      >>> @nnx.jit
      ... def train_step(model, optimizer, rule, x, y):
      ...     loss_fn = lambda model, x, y: jnp.mean((model(x) - y) ** 2)
      ...     loss, grads = rule.value_and_grad(loss_fn)(model, x, y)
      ...     optimizer.update(model, grads)
      ...     return loss
      >>> losses = [train_step(model, optimizer, rule, jnp.eye(2), jnp.ones((2, 1))) for _ in range(9)]
      >>> bool(losses[-1] < losses[0]), bool(rule.info.refreshed)
      (True, False)
    """

    def __init__(self, rule: Rule, model: Any, *, wrt: Any = nnx.Param):
        if rule.groups is not None:
            raise ValueError(
                f"{rule!r} has groups, which split a batch of plain arrays; leave groups out, or call rule.gradient "
                "with a function of nnx.as_pure(nnx.state(model, nnx.Param))."
            )
        params = nnx.as_pure(nnx.state(model, wrt))
        if not jax.tree.leaves(params):
            raise ValueError(f"{type(model).__name__} has no variables of wrt={wrt}; pass e.g. wrt=nnx.Param.")
        self.rule, self.wrt = rule, wrt
        self.state = nnx.data(jax.tree.map(RuleVariable, rule.init(params)))
        self.last = nnx.data(jax.tree.map(RuleVariable, initial_info(params)))

    @property
    def info(self) -> StepInfo:
        """The info of the last step."""
        info: StepInfo = nnx.as_pure(self.last)
        return info

    def value_and_grad(
        self, loss_fn: Callable[..., Any], *, has_aux: bool = False, refresh: bool | None = None
    ) -> Callable[..., tuple[Any, Any]]:
        """Returns a function ``(model, *args) -> (value, grads)``, with grads for ``optimizer.update(model, grads)``.

        Args:
          loss_fn: ``loss_fn(model, *args)``, a scalar, or with ``has_aux`` a pair of a scalar and anything else.
          has_aux: as for ``nnx.value_and_grad``.
          refresh: as for ``Rule.gradient``; static, e.g. by ``nnx.jit(train_step, static_argnames="refresh")``.
        """
        differentiated = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, self.wrt), has_aux=has_aux)

        @functools.wraps(loss_fn)
        def value_and_grad(model: Any, *args: Any) -> tuple[Any, Any]:
            graph, *states = nnx.split(model, self.wrt, ...)
            params, rest = states
            structure = jax.tree.structure(params)

            def in_a_copy(weights: Any, *args: Any) -> tuple[Any, Any]:
                variables = jax.tree.unflatten(structure, jax.tree.leaves(weights))
                copy = nnx.merge(graph, variables, rest, copy=True)
                value, grads = differentiated(copy, *args)
                return (value, nnx.state(copy, nnx.Not(self.wrt))), nnx.as_pure(grads)

            (value, rest), grads, state, info = self.rule.gradient(
                in_a_copy, nnx.as_pure(params), nnx.as_pure(self.state), *args, refresh=refresh
            )
            nnx.update(model, rest)
            _set(self.state, state)
            _set(self.last, info)
            return value, jax.tree.unflatten(structure, jax.tree.leaves(grads))

        return value_and_grad


def _set(variables: Any, values: Any) -> None:
    """Sets variables in place."""
    found = jax.tree.leaves(variables, is_leaf=lambda x: isinstance(x, nnx.Variable))
    for variable, value in zip(found, jax.tree.leaves(values), strict=True):
        variable.set_value(value)


class TrainState(train_state.TrainState):
    """Flax Linen's TrainState for ``looksam.as_optimizer``, which needs a function for the second gradient.

    Example:
      >>> import jax, jax.numpy as jnp, looksam, optax
      >>> tx = looksam.as_optimizer(looksam.sam(rho=0.5), optax.sgd(0.1))
      >>> state = looksam.TrainState.create(apply_fn=None, params={"w": jnp.array([3.0, 4.0])}, tx=tx)
      >>> grad = jax.grad(lambda params: jnp.sum(params["w"] ** 2))
      >>> state = state.apply_gradients(grads=grad(state.params), grad_fn=lambda params, _: grad(params))
      >>> print(state.params["w"], state.opt_state.info.fell_back)
      [2.34 3.12] False
    """

    def apply_gradients(
        self,
        *,
        grads: Any,
        grad_fn: Callable[[Any, int], Any] | None = None,
        refresh: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Updates the parameters; ``grad_fn`` and ``refresh`` are those of ``as_optimizer``, the rest is Flax's."""
        tx = optax.with_extra_args_support(self.tx)
        update = functools.partial(tx.update, grad_fn=grad_fn, refresh=refresh)
        bound = self.replace(tx=optax.GradientTransformation(tx.init, update))
        return super(TrainState, bound).apply_gradients(grads=grads, **kwargs).replace(tx=self.tx)
