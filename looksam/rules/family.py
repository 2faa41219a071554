"""The five rules, each a composition of a ball, a period and a reuse.

Reference: Liu et al., "Towards Efficient and Scalable Sharpness-Aware Minimization", CVPR 2022. The paper leaves
some points open; docs/maths.md says how each is read here.
"""

from collections.abc import Sequence
from typing import Literal

from jax.typing import ArrayLike, DTypeLike

from looksam.rules import validation
from looksam.rules.perturbation import Ball, Layers, global_ball, layer_ball
from looksam.rules.rule import Groups, Rule, Schedule, make_rule

Scaling = Literal["normalized", "literal", "adaptive"]


def sam(
    rho: ArrayLike | Schedule,
    *,
    p: float = 2.0,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """SAM: the gradient at the steepest neighbour, g_s = ∇L(w + ε), on every step. Two gradients a step.

    With p = 2, ε = ρ g/‖g‖ over the whole parameter vector.

    Args:
      rho: radius ρ ≥ 0 of the ball: a number, an array scalar or a schedule of the rule's step count.
      p: norm of the ball, 1 < p ≤ ∞.
      groups: cut the batch into this many equal groups, each of which climbs its own gradient; g and g_s are the means
        over them (m-sharpness, m being the images of a group). ``"device"``: a group for each device of the mesh. What
        ``value_and_grad`` returns is averaged over the groups, so its auxiliary output has to be means.
      batch_argnums: which of the arguments after ``params`` carry the batch, on their first axis; by default all.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w, x: jnp.sum((w * x) ** 2)
      >>> rule = looksam.sam(rho=0.1)
      >>> params = jnp.array([3.0, 4.0])
      >>> value, grads, state, info = rule.gradient(jax.value_and_grad(loss), params, rule.init(params), 1.0)
      >>> print(grads)  # 2 (w + 0.1 g/‖g‖)
      [6.12 8.16]

    Reference:
      Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR 2021. We differ
      where g = 0: ε is 0 there, not NaN.
    """
    return sam_k(rho, k=1, p=p, groups=groups, batch_argnums=batch_argnums)


def sam_k(
    rho: ArrayLike | Schedule,
    k: int,
    *,
    p: float = 2.0,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """SAM-k: SAM on every k-th step, the plain gradient in between. 1 + 1/k gradients a step.

    Args:
      rho: as for ``sam``.
      k: steps that share one second gradient; steps 0, k, 2k, … take it.
      p, groups, batch_argnums: as for ``sam``.

    Example:
      >>> import looksam
      >>> rule = looksam.sam_k(rho=0.1, k=3)
      >>> [rule.refreshes(step) for step in range(5)]
      [True, False, False, True, False]
    """
    validation.non_negative("rho", rho)
    validation.group_setting(groups)
    ball = global_ball(validation.exponent(p))
    return make_rule(ball, rho=rho, k=validation.period(k), groups=groups, batch_argnums=batch_argnums)


def look_sam(
    rho: ArrayLike | Schedule,
    alpha: ArrayLike | Schedule = 0.7,
    k: int = 5,
    *,
    p: float = 2.0,
    store_dtype: DTypeLike | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """LookSAM-k: SAM on every k-th step, g + α (‖g‖/‖g_v‖) g_v in between. 1 + 1/k gradients a step.

    g_v = g_s − (⟨g, g_s⟩/‖g‖²) g is the part of the last SAM gradient orthogonal to g, by one projection over the
    whole parameter vector.

    Args:
      rho: as for ``sam``.
      alpha: strength α ≥ 0 of the reused part: a number, an array scalar or a schedule of the rule's step count.
      k: as for ``sam_k``; k = 1 is ``sam``, the same program and state.
      p, groups, batch_argnums: as for ``sam``. g_v comes from the means over the groups.
      store_dtype: dtype of the kept g_v, by default each parameter's; ``jnp.bfloat16`` halves its memory.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w: w[0] ** 2 + 3 * w[1] ** 2
      >>> rule = looksam.look_sam(rho=0.1, alpha=0.5, k=2)
      >>> params = jnp.array([1.0, 1.0])
      >>> state = rule.init(params)
      >>> for step in range(2):
      ...     refresh = rule.refreshes(step)  # static: a reuse step holds one gradient
      ...     value, grads, state, info = rule.gradient(jax.value_and_grad(loss), params, state, refresh=refresh)
      ...     print(bool(info.refreshed), *(f"{g:.2f}" for g in grads), f"cosine {info.cosine:.3f}")
      True 2.06 6.57 cosine 1.000
      False -1.00 7.00 cosine 0.894

    Reference:
      Liu et al., CVPR 2022, Algorithm 1. We refresh at step 0 already, so that g_v exists from the start.
    """
    validation.non_negative("rho", rho)
    validation.non_negative("alpha", alpha)
    validation.storage(store_dtype)
    validation.group_setting(groups)
    return make_rule(
        global_ball(validation.exponent(p)),
        rho=rho,
        k=validation.period(k),
        alpha=alpha,
        store_dtype=store_dtype,
        groups=groups,
        batch_argnums=batch_argnums,
    )


def layer_sam(
    rho: ArrayLike | Schedule,
    *,
    p: float = 2.0,
    scaling: Scaling = "normalized",
    layers: Layers | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """LayerSAM: SAM with the perturbation of each layer scaled by Λ_i = ‖w_i‖/‖g_i‖. Two gradients a step.

    Args:
      rho: as for ``sam``.
      p: as for ``sam``. At p = ∞ the layer with the smallest gradient takes most of the budget.
      scaling: with u = Λ sign(g)|g|^(q−1), ``"normalized"`` is ε = ρ u/‖u‖_p, ``"literal"`` the paper's printed
        ε = ρ u/(‖g‖_q^q)^(1/p), which depends on the scale of the loss, and ``"adaptive"`` the maximiser of ⟨g, ε⟩
        where the size of each ε_i is counted in units of ‖w_i‖.
      layers: a function from a parameter's path, like ``"block/kernel"``, to the name of its layer; by default
        each tensor is a layer.
      groups, batch_argnums: as for ``sam``.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w: jnp.sum(w["a"] ** 2) + jnp.sum(w["b"] ** 2)
      >>> params = {"a": jnp.array([3.0]), "b": jnp.array([0.04])}
      >>> rule = looksam.layer_sam(rho=0.3)
      >>> _, grads, _, _ = rule.gradient(jax.value_and_grad(loss), params, rule.init(params))
      >>> {name: round(float(g[0]), 3) for name, g in grads.items()}  # both weights moved by 10 %
      {'a': 6.6, 'b': 0.088}

    Reference:
      Liu et al., CVPR 2022, Algorithm 2. Its formula is ``scaling="literal"``.
    """
    ball = _checked_layer_ball(p, scaling, layers)
    validation.non_negative("rho", rho)
    validation.group_setting(groups)
    return make_rule(ball, rho=rho, k=1, groups=groups, batch_argnums=batch_argnums)


def look_layer_sam(
    rho: ArrayLike | Schedule,
    alpha: ArrayLike | Schedule = 0.7,
    k: int = 5,
    *,
    p: float = 2.0,
    store_dtype: DTypeLike | None = None,
    scaling: Scaling = "normalized",
    layers: Layers | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """Look-LayerSAM-k: LookSAM-k with LayerSAM's perturbation. 1 + 1/k gradients a step.

    Args:
      rho, p, scaling, layers, groups, batch_argnums: as for ``layer_sam``.
      alpha, k, store_dtype: as for ``look_sam``.

    Example:
      >>> import jax, jax.numpy as jnp, looksam, optax
      >>> loss = lambda w: jnp.sum(w["kernel"] ** 4) + jnp.sum(w["bias"] ** 2)
      >>> params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
      >>> tx = optax.lamb(0.1)
      >>> rule = looksam.look_layer_sam(rho=1.0, k=2)
      >>> @jax.jit
      ... def step(params, state, opt_state):
      ...     value, grads, state, info = rule.gradient(jax.value_and_grad(loss), params, state)
      ...     updates, opt_state = tx.update(grads, opt_state, params)
      ...     return optax.apply_updates(params, updates), state, opt_state, info.refreshed
      >>> state, opt_state = rule.init(params), tx.init(params)
      >>> for _ in range(3):
      ...     params, state, opt_state, refreshed = step(params, state, opt_state)
      ...     print(bool(refreshed))
      True
      False
      True

    Reference:
      Liu et al., CVPR 2022, Algorithm 3.
    """
    ball = _checked_layer_ball(p, scaling, layers)
    validation.non_negative("rho", rho)
    validation.non_negative("alpha", alpha)
    validation.storage(store_dtype)
    validation.group_setting(groups)
    return make_rule(
        ball,
        rho=rho,
        k=validation.period(k),
        alpha=alpha,
        store_dtype=store_dtype,
        groups=groups,
        batch_argnums=batch_argnums,
    )


def _checked_layer_ball(p: float, scaling: str, layers: Layers | None) -> Ball:
    validation.layer_scaling(scaling)
    validation.layer_function(layers)
    return layer_ball(validation.exponent(p), scaling, layers)
