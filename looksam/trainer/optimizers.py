"""The rule and the base optimizer of a recipe: where a batch's gradient is chosen, and where it ends.

The last stop of a batch: ``step.py`` hands its gradient to the rule, which decides on the gradient that the optimizer
sees; the optimizer clips that one and turns it into an update of the parameters.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from looksam.methods import METHODS
from looksam.rules import Rule
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import rule_settings


def make_rule(recipe: Recipe, total_steps: int, rho: Any = None, alpha: Any = None) -> Rule | None:
    """The recipe's rule for a run of ``total_steps``, or None for the base optimizer.

    ``rho`` and ``alpha`` replace the recipe's; sweeps pass traced values.
    """
    replaced = {name: value for name, value in (("rho", rho), ("alpha", alpha)) if value is not None}
    return METHODS[recipe.method].rule(rule_settings(recipe, total_steps) | replaced)


def make_schedule(recipe: Recipe, total_steps: int, peak: Any = None) -> optax.Schedule:
    """Linear warm-up from 0 to the peak, then cosine or linear decay to 0 at ``total_steps``.

    ``peak`` replaces the recipe's peak learning rate; sweeps pass a traced value.
    """
    peak, warmup = recipe.peak_learning_rate() if peak is None else peak, recipe.warmup_steps
    if warmup >= total_steps:
        raise ValueError(
            f"warmup_steps={warmup} leaves no step of the {total_steps} in the run; pass fewer, or more epochs."
        )
    decay = {"cosine": optax.cosine_decay_schedule, "linear": _linear_decay}[recipe.schedule](
        peak, total_steps - warmup
    )
    if warmup == 0:
        return decay
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), decay], [warmup])


def _linear_decay(peak: Any, steps: int) -> optax.Schedule:
    return optax.linear_schedule(peak, 0.0, steps)


def make_optimizer(
    recipe: Recipe, total_steps: int, peak: Any = None, weight_decay: Any = None
) -> optax.GradientTransformation:
    """The base optimizer: SGD-M with L2 decay, or AdamW or LAMB with decoupled decay, after clipping by global norm.

    ``peak`` and ``weight_decay`` replace the recipe's; sweeps pass traced values.
    """
    rate = make_schedule(recipe, total_steps, peak)
    decay = recipe.weight_decay if weight_decay is None else weight_decay
    mask = None if recipe.decay_all else is_kernel
    if recipe.optimizer == "sgdm":
        without = weight_decay is None and not decay  # a traced value may be 0, and then changes nothing
        parts = [] if without else [optax.add_decayed_weights(decay, mask)]
        base = optax.chain(*parts, optax.sgd(rate, momentum=recipe.momentum))
    elif recipe.optimizer == "adamw":
        base = optax.adamw(rate, weight_decay=decay, mask=mask)
    else:
        base = optax.lamb(rate, weight_decay=decay, mask=mask)
    return base if recipe.clip_norm is None else optax.chain(optax.clip_by_global_norm(recipe.clip_norm), base)


def is_kernel(params: Any) -> Any:
    """The mask of weight decay: True for tensors of two or more axes (kernels, embeddings), False for the rest."""
    return jax.tree.map(lambda x: jnp.ndim(x) >= 2, params)
