"""What a run carries from step to step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from looksam.models import Model
from looksam.rules import Rule


class TrainState(NamedTuple):
    """A pytree of arrays: donated to the step, and what a checkpoint holds."""

    step: jax.Array  # steps taken
    params: Any
    stats: Any  # of the model: BatchNorm's running mean and variance
    opt_state: Any
    rule_state: Any  # g_v and the counter; () for the base optimizer
    key: jax.Array  # key data; what is random in step i comes from fold_in(key, i)


def init_state(key: jax.Array, model: Model, rule: Rule | None, tx: optax.GradientTransformation) -> TrainState:
    """The state at step 0, from one key. Pure: jit it, vmap it, or look at its shapes alone."""
    init_key, run_key = jax.random.split(key)
    params, stats = model.init(init_key)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        stats=stats,
        opt_state=tx.init(params),
        rule_state=rule.init(params) if rule else (),
        key=jax.random.key_data(run_key),
    )
