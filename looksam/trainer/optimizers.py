"""The base optimizer and the rule that a recipe names."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import looksam
from looksam.rules import Rule
from looksam.trainer.recipe import Recipe


def make_schedule(recipe: Recipe, total_steps: int, peak: Any = None) -> optax.Schedule:
    """Linear warm-up from 0 to the peak, then cosine or linear decay to 0 at ``total_steps``.

    ``peak`` stands in for the recipe's in sweeps.
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


def make_optimizer(recipe: Recipe, total_steps: int, peak: Any = None) -> optax.GradientTransformation:
    """Clip the gradient the rule returns, then SGD-M (L2 decay), AdamW or LAMB (decoupled decay)."""
    rate, decay = make_schedule(recipe, total_steps, peak), recipe.weight_decay
    mask = None if recipe.decay_all else kernels
    if recipe.optimizer == "sgdm":
        parts = [optax.add_decayed_weights(decay, mask)] if decay else []
        base = optax.chain(*parts, optax.sgd(rate, momentum=recipe.momentum))
    elif recipe.optimizer == "adamw":
        base = optax.adamw(rate, weight_decay=decay, mask=mask)
    else:
        base = optax.lamb(rate, weight_decay=decay, mask=mask)
    return base if recipe.clip_norm is None else optax.chain(optax.clip_by_global_norm(recipe.clip_norm), base)


def kernels(params: Any) -> Any:
    """True for tensors of two or more axes: kernels and embeddings, not biases and norms."""
    return jax.tree.map(lambda x: jnp.ndim(x) >= 2, params)


def make_rule(recipe: Recipe, rho: Any = None, alpha: Any = None) -> Rule | None:
    """The recipe's rule, or None for the base optimizer. ``rho`` and ``alpha`` stand in for the recipe's in sweeps."""
    if recipe.method == "base":
        return None
    options: dict[str, Any] = {"rho": recipe.rho if rho is None else rho, "p": recipe.p}
    if recipe.method in ("sam_k", "look_sam", "look_layer_sam"):
        options["k"] = recipe.k
    if recipe.method in ("look_sam", "look_layer_sam"):
        options["alpha"] = recipe.alpha if alpha is None else alpha
    if recipe.method in ("layer_sam", "look_layer_sam"):
        options["scaling"] = recipe.scaling
    return getattr(looksam, recipe.method)(**options)


def gradients_per_step(recipe: Recipe) -> float:
    if recipe.method == "base":
        return 1.0
    return 1 + (1.0 if recipe.method in ("sam", "layer_sam") else 1 / recipe.k)
