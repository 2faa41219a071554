"""The paper's five rules as optimizers, and the table of all rules; each is a combination of the choices in parts.py.

A new rule is a class here or in sam_variants.py, with its name in ``RULES``; a new choice goes into parts.py.

Reference: Liu et al., "Towards Efficient and Scalable Sharpness-Aware Minimization", CVPR 2022. docs/maths.md explains
how we read what the paper leaves open, docs/pytorch.md how to use the optimizers.
"""

from typing import Unpack

import torch
from torch.optim import Optimizer

from looksam.arguments import Scaling
from looksam.schedule import every
from looksam.torch.optimizer import Options, SharpnessAware
from looksam.torch.param_groups import Layers, ScalarOrSchedule
from looksam.torch.parts import global_perturbation, layerwise_perturbation, reused_g_v
from looksam.torch.sam_variants import ASAM, GSAM, MSAM


class SAMk(SharpnessAware):
    """SAM-k: SAM on every k-th step, the plain gradient in between. 1 + 1/k gradients per step.

    Args:
      base, rho, perturb, model, per_rank, clip_norm, full_info: as for ``SharpnessAware``.
      k: number of steps that share one second gradient; steps start, start + k, start + 2k, … take it.
      p: the norm in which the perturbation has length ρ, 1 < p ≤ ∞.
      start, stop: the rule acts on steps start ≤ count < stop. On all others the base optimizer gets g: one gradient,
        and nothing is kept. None is the end of training.

    Example:
      >>> import torch
      >>> from looksam.torch import SAMk
      >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> opt = SAMk(torch.optim.SGD([w], lr=0.1), rho=0.1, k=3)
      >>> calls = []
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = (w**2).sum()
      ...     loss.backward()
      ...     calls[-1] += 1
      ...     return loss
      >>> for _ in range(5):
      ...     calls.append(0)
      ...     loss = opt.step(closure)
      >>> calls
      [2, 1, 1, 2, 1]
    """

    def __init__(
        self,
        base: Optimizer,
        rho: ScalarOrSchedule,
        k: int,
        *,
        p: float = 2.0,
        start: int = 0,
        stop: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        schedule = every(k, start=start, stop=stop)
        super().__init__(base, global_perturbation(p), rho, schedule=schedule, **options)


class SAM(SAMk):
    """SAM: the gradient at the perturbed parameters, g_s = ∇L(w + ε), on every step. Two gradients per step.

    Args:
      base, rho, p, start, stop, perturb, model, per_rank, clip_norm, full_info: as for ``SAMk``.

    Example:
      >>> import torch
      >>> from looksam.torch import SAM
      >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=0.1)
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = (w**2).sum()
      ...     loss.backward()
      ...     return loss
      >>> loss = opt.step(closure)
      >>> w.grad  # 2 (w + 0.1 g/‖g‖)
      tensor([6.1200, 8.1600])
    """

    def __init__(
        self,
        base: Optimizer,
        rho: ScalarOrSchedule,
        *,
        p: float = 2.0,
        start: int = 0,
        stop: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho, 1, p=p, start=start, stop=stop, **options)


class LookSAM(SharpnessAware):
    """LookSAM-k: SAM on every k-th step, g + α (‖g‖/‖g_v‖) g_v in between. 1 + 1/k gradients per step.

    g_v = g_s − (⟨g, g_s⟩/‖g‖²) g is the part of the last SAM gradient orthogonal to g, by one projection over the whole
    parameter vector.

    Args:
      base, rho, k, p, start, stop, perturb, model, per_rank, clip_norm, full_info: as for ``SAMk``; k = 1 is ``SAM``.
      alpha: strength α ≥ 0 of the reused part: a number, or a function of the rule's step count. An ``"alpha"`` in a
        param group applies to that group.
      store_dtype: dtype in which g_v is kept, by default each parameter's own; ``torch.bfloat16`` halves its memory.

    Example:
      >>> import torch
      >>> from looksam.torch import LookSAM
      >>> w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
      >>> opt = LookSAM(torch.optim.SGD([w], lr=0.0), rho=0.1, alpha=0.5, k=2, full_info=True)
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = w[0] ** 2 + 3 * w[1] ** 2
      ...     loss.backward()
      ...     return loss
      >>> for _ in range(2):
      ...     loss = opt.step(closure)
      ...     print(opt.info.refreshed, *(f"{x:.2f}" for x in w.grad), f"cosine {opt.info.cosine:.3f}")
      True 2.06 6.57 cosine 1.000
      False -1.00 7.00 cosine 0.894

    Reference:
      Liu et al., CVPR 2022, Algorithm 1. We refresh at step 0 already, so that g_v exists from the start.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: ScalarOrSchedule,
        alpha: ScalarOrSchedule = 0.7,
        k: int = 5,
        *,
        p: float = 2.0,
        store_dtype: torch.dtype | None = None,
        start: int = 0,
        stop: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        schedule, between = every(k, start=start, stop=stop), reused_g_v(alpha, store_dtype)
        super().__init__(base, global_perturbation(p), rho, schedule=schedule, between=between, **options)


class LayerSAM(SharpnessAware):
    """LayerSAM: SAM with the perturbation of each layer scaled by Λ_i = ‖w_i‖/‖g_i‖. Two gradients per step.

    Args:
      base, rho, p, start, stop, perturb, model, per_rank, clip_norm, full_info: as for ``SAMk``. At p = ∞ the layer
        with the smallest gradient takes most of the budget.
      scaling: with u = Λ sign(g)|g|^(q−1), ``"normalized"`` is ε = ρ u/‖u‖_p, ``"literal"`` the paper's printed
        ε = ρ u/(‖g‖_q^q)^(1/p), which depends on the scale of the loss, and ``"adaptive"`` the maximiser of ⟨g, ε⟩
        where the size of each ε_i is measured in units of ‖w_i‖.
      layers: a function from a parameter's name, like ``"block.weight"``, to the name of its layer; by default each
        tensor is a layer. Names are those of ``model``, or of the ``named_parameters()`` that the base was given.

    Example:
      >>> import torch
      >>> from looksam.torch import LayerSAM
      >>> a, b = (torch.nn.Parameter(torch.tensor([x])) for x in (3.0, 0.04))
      >>> opt = LayerSAM(torch.optim.SGD([a, b], lr=0.1), rho=0.3)
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = (a**2 + b**2).sum()
      ...     loss.backward()
      ...     return loss
      >>> loss = opt.step(closure)
      >>> [round(p.grad.item(), 3) for p in (a, b)]  # both weights moved by 10 %
      [6.6, 0.088]

    Reference:
      Liu et al., CVPR 2022, Algorithm 2. Its formula is ``scaling="literal"``.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: ScalarOrSchedule,
        *,
        p: float = 2.0,
        scaling: Scaling = "normalized",
        layers: Layers | None = None,
        start: int = 0,
        stop: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        perturbation = layerwise_perturbation(p, scaling, layers)
        super().__init__(base, perturbation, rho, schedule=every(start=start, stop=stop), **options)


class LookLayerSAM(SharpnessAware):
    """Look-LayerSAM-k: LookSAM-k with LayerSAM's perturbation. 1 + 1/k gradients per step.

    Args:
      base, rho, p, scaling, layers, start, stop, perturb, model, per_rank, clip_norm, full_info: as for ``LayerSAM``.
      alpha, k, store_dtype: as for ``LookSAM``.

    Example:
      >>> import torch
      >>> from looksam.torch import LookLayerSAM
      >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
      >>> base = torch.optim.AdamW(model.parameters(), lr=1e-3)
      >>> opt = LookLayerSAM(base, rho=1.0, k=2, model=model, layers=lambda name: name.split(".")[0])
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = model(torch.ones(2, 3)).square().mean()
      ...     loss.backward()
      ...     return loss
      >>> for _ in range(3):
      ...     loss = opt.step(closure)
      ...     print(opt.info.refreshed)
      True
      False
      True

    Reference:
      Liu et al., CVPR 2022, Algorithm 3.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: ScalarOrSchedule,
        alpha: ScalarOrSchedule = 0.7,
        k: int = 5,
        *,
        p: float = 2.0,
        store_dtype: torch.dtype | None = None,
        scaling: Scaling = "normalized",
        layers: Layers | None = None,
        start: int = 0,
        stop: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        perturbation = layerwise_perturbation(p, scaling, layers)
        schedule, between = every(k, start=start, stop=stop), reused_g_v(alpha, store_dtype)
        super().__init__(base, perturbation, rho, schedule=schedule, between=between, **options)


# By their names in looksam.methods.
RULES: dict[str, type[SharpnessAware]] = {
    "sam": SAM,
    "sam_k": SAMk,
    "look_sam": LookSAM,
    "layer_sam": LayerSAM,
    "look_layer_sam": LookLayerSAM,
    "asam": ASAM,
    "gsam": GSAM,
    "msam": MSAM,
}
