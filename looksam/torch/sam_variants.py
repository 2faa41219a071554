"""Relatives of SAM from other papers, as optimizers: ASAM, GSAM and MSAM."""

from typing import Unpack

import torch
from torch.optim import Optimizer

from looksam.schedule import every
from looksam.torch.optimizer import Options, SharpnessAware
from looksam.torch.param_groups import ByName, ScalarOrSchedule
from looksam.torch.parts import elementwise_perturbation, global_perturbation, gsam_gradient, momentum_perturbation


class ASAM(SharpnessAware):
    """ASAM: SAM with each weight's perturbation scaled by its own size, T = |w| + η. Two gradients per step.

    ε = ρ T sign(g) |T g|^(q−1) / (‖T g‖_q^q)^(1/p) with 1/p + 1/q = 1, element by element; at p = 2, ρ T² g/‖T g‖. It
    takes a larger ρ than SAM: the paper uses ten times that of SAM.

    Args:
      base, rho, p, start, stop, perturb, model, per_rank, clip_norm, full_info: as for ``SAM``.
      eta: η ≥ 0, which lets weights that are 0 move.
      scale: a function from a parameter's name to whether it is scaled; T = 1 where it is False. By default all are;
        the paper's code leaves out biases: ``scale=lambda name: name.endswith("weight")``.

    Example:
      >>> import torch
      >>> from looksam.torch import ASAM
      >>> w = torch.nn.Parameter(torch.tensor([2.0, 1.0]))
      >>> opt = ASAM(torch.optim.SGD([w], lr=0.1), rho=0.5, eta=0.0)
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = 3 * w[0] + 8 * w[1]  # T g = (6, 8), so that ε = (0.6, 0.4)
      ...     print([round(x, 3) for x in w.tolist()])
      ...     loss.backward()
      ...     return loss
      >>> loss = opt.step(closure)
      [2.0, 1.0]
      [2.6, 1.4]

    Reference:
      Kwon et al., "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural Networks",
      ICML 2021. Its code leaves tensors whose name has no "weight" unscaled.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: ScalarOrSchedule,
        *,
        p: float = 2.0,
        eta: float = 0.01,
        scale: ByName | None = None,
        start: int = 0,
        stop: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        perturbation = elementwise_perturbation(p, eta, scale)
        super().__init__(base, perturbation, rho, schedule=every(start=start, stop=stop), **options)


class GSAM(SharpnessAware):
    """GSAM: SAM's gradient without part of the clean one, g_s − α g_⊥. Two gradients per step.

    g_⊥ = g − (⟨g, g_s⟩/‖g_s‖²) g_s is the part of the clean gradient orthogonal to g_s, by one projection over the
    whole parameter vector. A step along g_⊥ narrows the gap L(w + ε) − L(w) and, to first order, leaves L(w + ε) as it
    is.

    Args:
      base, rho, p, start, stop, perturb, model, per_rank, clip_norm, full_info: as for ``SAM``.
      alpha: strength α ≥ 0: a number, or a function of the rule's step count; 0 is SAM. An ``"alpha"`` in a param group
        applies to that group.

    Example:
      >>> import torch
      >>> from looksam.torch import GSAM
      >>> w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
      >>> opt = GSAM(torch.optim.SGD([w], lr=0.0), rho=0.5, alpha=0.5)
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = w[0] ** 2 + 3 * w[1] ** 2
      ...     loss.backward()
      ...     return loss
      >>> loss = opt.step(closure)
      >>> print(*(f"{x:.3f}" for x in w.grad))  # SAM: 2.316 8.846
      2.116 8.899

    Reference:
      Zhuang et al., "Surrogate Gap Minimization Improves Sharpness-Aware Training", ICLR 2022. It lets ρ follow the
      learning rate: pass a function as ``rho``.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: ScalarOrSchedule,
        alpha: ScalarOrSchedule,
        *,
        p: float = 2.0,
        start: int = 0,
        stop: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        schedule = every(start=start, stop=stop)
        super().__init__(base, global_perturbation(p), rho, schedule=schedule, refresh=gsam_gradient(alpha), **options)


class MSAM(SharpnessAware):
    """MSAM: the gradient at w − ρ v/‖v‖, where v is the momentum of the gradients before. One gradient per step.

    v ← μ v + g, starting from 0, so that the first step is that of the base optimizer. There is no clean pass: the loss
    that ``step`` returns, and BatchNorm statistics, are those at w + ε. Without a closure, ``with opt.ascend():`` goes
    around the forward and backward pass of every step.

    Args:
      base, rho, start, stop, perturb, model, clip_norm, full_info: as for ``SAM``; v sums the gradients of the steps
        on which the rule acts. ``per_rank`` is not possible: it needs the clean gradient.
      momentum: μ, 0 ≤ μ < 1.
      store_dtype: dtype in which v is kept, by default each parameter's own; ``torch.bfloat16`` halves its memory.
      use_base_momentum: take the momentum buffer of the base optimizer for v, which saves a copy of the parameters. It
        must be ``torch.optim.SGD`` with the same momentum, and without dampening and weight decay, which would enter
        the buffer; Nesterov momentum is fine. With ``clip_norm``, this v is of the clipped gradients.

    Example:
      >>> import torch
      >>> from looksam.torch import MSAM
      >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
      >>> opt = MSAM(torch.optim.SGD([w], lr=0.0), rho=0.5)
      >>> def closure():
      ...     opt.zero_grad()
      ...     loss = (w**2).sum()
      ...     print([round(x, 3) for x in w.tolist()])
      ...     loss.backward()
      ...     return loss
      >>> for _ in range(2):
      ...     loss = opt.step(closure)
      [3.0, 4.0]
      [2.7, 3.6]

    Reference:
      Becker et al., "Momentum-SAM: Sharpness Aware Minimization without Computational Overhead", 2024.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: ScalarOrSchedule,
        momentum: float = 0.9,
        *,
        store_dtype: torch.dtype | None = None,
        use_base_momentum: bool = False,
        start: int = 0,
        stop: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        perturbation = momentum_perturbation(momentum, store_dtype, use_base_momentum)
        super().__init__(base, perturbation, rho, schedule=every(start=start, stop=stop), **options)
