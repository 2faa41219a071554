"""The rules that have a name, each a composition of the four choices.

To add a rule, write its factory here, list it in ``__all__``, describe it in ``looksam.methods`` and write its NumPy
reference in tests/support/oracle.py. Everything else follows from these. The paper behind the package is Liu et al.,
"Towards Efficient and Scalable Sharpness-Aware Minimization", CVPR 2022; docs/maths.md says how open points are read.
"""

from collections.abc import Sequence

from jax.typing import ArrayLike, DTypeLike

from looksam.arguments import Scaling
from looksam.rules.batching import Groups
from looksam.rules.choices import ScalarOrSchedule, gsam_gradient, reused_g_v
from looksam.rules.composition import compose
from looksam.rules.momentum_rule import momentum_perturbation
from looksam.rules.perturbation import (
    ByPath,
    Layers,
    elementwise_perturbation,
    global_perturbation,
    layerwise_perturbation,
)
from looksam.rules.rule import Rule, shows_call
from looksam.schedule import every

__all__ = ["asam", "gsam", "layer_sam", "look_layer_sam", "look_sam", "msam", "sam", "sam_k"]


@shows_call
def sam(
    rho: ScalarOrSchedule,
    *,
    p: float = 2.0,
    start: int = 0,
    stop: int | None = None,
    perturb: ByPath | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """SAM: the gradient at the perturbed parameters, g_s = ∇L(w + ε), on every step. Two gradients per step.

    With p = 2, ε = ρ g/‖g‖ over the whole parameter vector.

    Args:
      rho: radius ρ ≥ 0 of the perturbation: a number, an array scalar or a schedule of the rule's step count.
      p: norm in which the radius is measured, 1 < p ≤ ∞.
      start: the first step on which the rule acts; before it, the base optimizer gets the plain gradient.
      stop: the step from which on it gets the plain gradient again; None for the end of training.
      perturb: a function from a parameter's path, like ``"block/kernel"``, to whether it is perturbed; by default all
        are. The others neither move nor count in the norms of ε.
      groups: split the batch into this many equal groups, each perturbed along its own gradient; g and g_s are the
        means over them (m-sharpness, m being the examples of a group). ``"device"``: one group per device of the mesh.
        The outputs of ``value_and_grad`` are averaged over the groups, so its auxiliary output has to be means.
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
      Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR 2021. This differs
      where g = 0: ε is 0 there, not NaN.
    """
    return compose(
        global_perturbation(p),
        rho,
        schedule=every(start=start, stop=stop),
        perturb=perturb,
        groups=groups,
        batch_argnums=batch_argnums,
    )


@shows_call
def sam_k(
    rho: ScalarOrSchedule,
    k: int,
    *,
    p: float = 2.0,
    start: int = 0,
    stop: int | None = None,
    perturb: ByPath | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """SAM-k: SAM on every k-th step, the plain gradient in between. 1 + 1/k gradients per step.

    Args:
      rho: as for ``sam``.
      k: number of steps that share one second gradient; steps 0, k, 2k, … take it.
      p, start, stop, perturb, groups, batch_argnums: as for ``sam``.

    Example:
      >>> import looksam
      >>> rule = looksam.sam_k(rho=0.1, k=3)
      >>> [rule.refreshes(step) for step in range(5)]
      [True, False, False, True, False]
    """
    return compose(
        global_perturbation(p),
        rho,
        schedule=every(k, start=start, stop=stop),
        perturb=perturb,
        groups=groups,
        batch_argnums=batch_argnums,
    )


@shows_call
def look_sam(
    rho: ScalarOrSchedule,
    alpha: ScalarOrSchedule = 0.7,
    k: int = 5,
    *,
    p: float = 2.0,
    store_dtype: DTypeLike | None = None,
    start: int = 0,
    stop: int | None = None,
    perturb: ByPath | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """LookSAM-k: SAM on every k-th step, g + α (‖g‖/‖g_v‖) g_v in between. 1 + 1/k gradients per step.

    g_v = g_s − (⟨g, g_s⟩/‖g‖²) g is the part of the last SAM gradient orthogonal to g, by one projection over the
    whole parameter vector.

    Args:
      rho: as for ``sam``.
      alpha: strength α ≥ 0 of the reused part: a number, an array scalar or a schedule of the rule's step count.
      k: as for ``sam_k``; k = 1 is ``sam``, with the same program and state.
      p, start, stop, perturb, groups, batch_argnums: as for ``sam``. g_v is computed from the means over the groups.
      store_dtype: dtype of the kept g_v, by default each parameter's; ``jnp.bfloat16`` halves its memory.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w: w[0] ** 2 + 3 * w[1] ** 2
      >>> rule = looksam.look_sam(rho=0.1, alpha=0.5, k=2)
      >>> params = jnp.array([1.0, 1.0])
      >>> state = rule.init(params)
      >>> for step in range(2):
      ...     refresh = rule.refreshes(step)  # static: a reuse step contains one gradient
      ...     value, grads, state, info = rule.gradient(jax.value_and_grad(loss), params, state, refresh=refresh)
      ...     print(bool(info.refreshed), *(f"{g:.2f}" for g in grads), f"cosine {info.cosine:.3f}")
      True 2.06 6.57 cosine 1.000
      False -1.00 7.00 cosine 0.894

    Reference:
      Liu et al., CVPR 2022, Algorithm 1. Step 0 refreshes already, so that g_v exists from the start.
    """
    return compose(
        global_perturbation(p),
        rho,
        schedule=every(k, start=start, stop=stop),
        between=reused_g_v(alpha, store_dtype),
        perturb=perturb,
        groups=groups,
        batch_argnums=batch_argnums,
    )


@shows_call
def layer_sam(
    rho: ScalarOrSchedule,
    *,
    p: float = 2.0,
    scaling: Scaling = "normalized",
    layers: Layers | None = None,
    start: int = 0,
    stop: int | None = None,
    perturb: ByPath | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """LayerSAM: SAM with the perturbation of each layer scaled by Λ_i = ‖w_i‖/‖g_i‖. Two gradients per step.

    Args:
      rho: as for ``sam``.
      p: as for ``sam``. At p = ∞ the layer with the smallest gradient takes most of the budget.
      scaling: with u = Λ sign(g)|g|^(q−1), ``"normalized"`` is ε = ρ u/‖u‖_p, ``"literal"`` the paper's printed
        ε = ρ u/(‖g‖_q^q)^(1/p), which depends on the scale of the loss, and ``"adaptive"`` the maximiser of ⟨g, ε⟩
        where the size of each ε_i is counted in units of ‖w_i‖.
      layers: a function from a parameter's path, like ``"block/kernel"``, to the name of its layer; by default
        each tensor is a layer.
      start, stop, perturb, groups, batch_argnums: as for ``sam``.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w: jnp.sum(w["a"] ** 2) + jnp.sum(w["b"] ** 2)
      >>> params = {"a": jnp.array([3.0]), "b": jnp.array([0.04])}
      >>> rule = looksam.layer_sam(rho=0.3)
      >>> _, grads, _, _ = rule.gradient(jax.value_and_grad(loss), params, rule.init(params))
      >>> {name: round(float(g[0]), 3) for name, g in grads.items()}  # both weights are perturbed by 10 %
      {'a': 6.6, 'b': 0.088}

    Reference:
      Liu et al., CVPR 2022, Algorithm 2. Its formula is ``scaling="literal"``.
    """
    return compose(
        layerwise_perturbation(p, scaling, layers),
        rho,
        schedule=every(start=start, stop=stop),
        perturb=perturb,
        groups=groups,
        batch_argnums=batch_argnums,
    )


@shows_call
def look_layer_sam(
    rho: ScalarOrSchedule,
    alpha: ScalarOrSchedule = 0.7,
    k: int = 5,
    *,
    p: float = 2.0,
    store_dtype: DTypeLike | None = None,
    scaling: Scaling = "normalized",
    layers: Layers | None = None,
    start: int = 0,
    stop: int | None = None,
    perturb: ByPath | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """Look-LayerSAM-k: LookSAM-k with LayerSAM's perturbation. 1 + 1/k gradients per step.

    Args:
      rho, p, scaling, layers, start, stop, perturb, groups, batch_argnums: as for ``layer_sam``.
      alpha, k, store_dtype: as for ``look_sam``.

    Example:
      >>> import jax, jax.numpy as jnp, looksam, optax
      >>> loss = lambda w: jnp.sum(w["kernel"] ** 4) + jnp.sum(w["bias"] ** 2)
      >>> params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
      >>> rule, tx = looksam.look_layer_sam(rho=1.0, k=2), optax.lamb(0.1)
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
    return compose(
        layerwise_perturbation(p, scaling, layers),
        rho,
        schedule=every(k, start=start, stop=stop),
        between=reused_g_v(alpha, store_dtype),
        perturb=perturb,
        groups=groups,
        batch_argnums=batch_argnums,
    )


@shows_call
def asam(
    rho: ScalarOrSchedule,
    *,
    p: float = 2.0,
    eta: ArrayLike = 0.01,
    scale: ByPath | None = None,
    start: int = 0,
    stop: int | None = None,
    perturb: ByPath | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """ASAM: SAM with a perturbation that is proportional to the size of each weight. Two gradients per step.

    With T = |w| + η, element by element, and p = 2, ε = ρ T² g/‖T g‖: rescaling weights in ways that do not change the
    network does not change the rule. Its ρ is larger than SAM's, about tenfold.

    Args:
      rho, p: as for ``sam``.
      eta: η ≥ 0, which lets weights near 0 move.
      scale: a function from a parameter's path to whether it is scaled by its size (else T = 1); by default all are.
      start, stop, perturb, groups, batch_argnums: as for ``sam``.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w: jnp.sum(w**2)
      >>> rule = looksam.asam(rho=0.5, eta=0.0)
      >>> params = jnp.array([3.0, 4.0])
      >>> _, grads, _, _ = rule.gradient(jax.value_and_grad(loss), params, rule.init(params))
      >>> print(*(f"{x:.3f}" for x in grads))  # 2 (w + 0.5 w² g/‖w g‖)
      7.471 11.486

    Reference:
      Kwon et al., "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural Networks",
      ICML 2021. Their code scales weights but not biases: pass ``scale``.
    """
    return compose(
        elementwise_perturbation(p, eta, scale),
        rho,
        schedule=every(start=start, stop=stop),
        perturb=perturb,
        groups=groups,
        batch_argnums=batch_argnums,
    )


@shows_call
def gsam(
    rho: ScalarOrSchedule,
    alpha: ScalarOrSchedule,
    *,
    p: float = 2.0,
    start: int = 0,
    stop: int | None = None,
    perturb: ByPath | None = None,
    groups: Groups | None = None,
    batch_argnums: Sequence[int] | None = None,
) -> Rule:
    """GSAM: SAM that also narrows the gap between the loss at w + ε and at w. Two gradients per step.

    Returns g_s − α g_⊥, with g_⊥ = g − (⟨g, g_s⟩/‖g_s‖²) g_s the part of the clean gradient orthogonal to g_s, by one
    projection over the whole parameter vector: it descends the loss at w + ε, and along g_⊥ ascends the loss at w.

    Args:
      rho: as for ``sam``. The paper lets it decay with the learning rate; pass a schedule.
      alpha: strength α ≥ 0 of the second part: a number, an array scalar or a schedule; 0 is ``sam``.
      p, start, stop, perturb, groups, batch_argnums: as for ``sam``. g_⊥ is computed from the means over the groups.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w: w[0] ** 2 + 3 * w[1] ** 2
      >>> rule = looksam.gsam(rho=0.1, alpha=0.5)
      >>> params = jnp.array([1.0, 1.0])
      >>> _, grads, _, _ = rule.gradient(jax.value_and_grad(loss), params, rule.init(params))
      >>> print(*(f"{x:.3f}" for x in grads))
      2.011 6.586

    Reference:
      Zhuang et al., "Surrogate Gap Minimization Improves Sharpness-Aware Training", ICLR 2022.
    """
    return compose(
        global_perturbation(p),
        rho,
        schedule=every(start=start, stop=stop),
        refresh=gsam_gradient(alpha),
        perturb=perturb,
        groups=groups,
        batch_argnums=batch_argnums,
    )


@shows_call
def msam(
    rho: ScalarOrSchedule,
    momentum: float = 0.9,
    *,
    store_dtype: DTypeLike | None = None,
    start: int = 0,
    stop: int | None = None,
    perturb: ByPath | None = None,
) -> Rule:
    """MSAM: the gradient at w − ρ v/‖v‖, with v the momentum of the gradients so far. One gradient per step.

    There is no clean pass: ``value`` is the loss at the perturbed parameters.

    Args:
      rho: as for ``sam``. Good values are larger than SAM's.
      momentum: μ in v ← μ v + g, 0 ≤ μ < 1. v is the rule's own, starts at 0, and grows on the steps on which the rule
        acts; a gradient that is not finite does not enter it.
      store_dtype: dtype of the kept v, by default each parameter's; ``jnp.bfloat16`` halves its memory.
      start, stop, perturb: as for ``sam``.

    Example:
      >>> import jax, jax.numpy as jnp, looksam
      >>> loss = lambda w: jnp.sum(w**2)
      >>> rule = looksam.msam(rho=0.5)
      >>> params = jnp.array([3.0, 4.0])
      >>> state = rule.init(params)
      >>> for step in range(2):
      ...     value, grads, state, info = rule.gradient(jax.value_and_grad(loss), params, state)
      ...     print(value, grads)  # the first step has no momentum yet
      25.0 [6. 8.]
      20.25 [5.4 7.2]

    Reference:
      Becker et al., "Momentum-SAM: Sharpness Aware Minimization without Computational Overhead", 2024.
    """
    return compose(
        momentum_perturbation(momentum, store_dtype), rho, schedule=every(start=start, stop=stop), perturb=perturb
    )
