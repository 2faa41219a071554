"""The passes of MSAM: one per step, at w + ε, where ε follows the momentum v of past gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from looksam.torch import formulas, tensors
from looksam.torch.param_groups import trained
from looksam.torch.parts import MomentumPerturbation
from looksam.torch.passes import Passes, at, by_group
from looksam.torch.phase import Perturbed
from looksam.torch.saved_weights import SavedWeights
from looksam.torch.scaling import Scaler
from looksam.torch.sharding import VectorSpace, local
from looksam.torch.state import Keeps
from looksam.torch.tensors import Tensors, divide, finite


@dataclass
class MomentumPasses(Passes):
    """The work of a wrapper that perturbs along the momentum: ``perturb``, the only pass, ``descend``."""

    perturbation: MomentumPerturbation  # type: ignore[assignment]

    @property
    def keeps(self) -> Keeps:
        return "nothing" if self.perturbation.use_base_momentum else "v"

    @property
    def is_due(self) -> bool:
        return False

    @property
    def perturbs_first(self) -> bool:
        return bool(self.schedule.is_active(self.state.count))

    def perturb(self, scaler: Scaler | None) -> None:
        """Moves the weights to w − ρ v/‖v‖; there is no gradient yet."""
        params, v, norm, groups = self._momentum()
        weights = local(params)
        self.step.scaler = scaler
        saved = SavedWeights(weights, tensors.copies(weights))
        self.step.perturb(Perturbed({}, saved, None))
        if norm is not None:
            factors = divide(-torch.ones_like(norm), norm).expand(len(v))
            radii = by_group(factors, self.groups.values("rho", self.state.count), groups)
            saved.move(radii, v, VectorSpace.of(params).dtype)  # (14)
        torch.clear_autocast_cache()  # it may hold casts of w

    def descend(self, wrapper: Optimizer) -> None:
        """Puts the weights back at w, leaves the gradient as it is, and adds it to the momentum."""
        del wrapper  # the clean pass of a scaler is the only one, and so recorded under the base
        self.step.return_to_w()
        if not self.groups.have_gradients:
            return
        params, grads, groups = self.groups.gradients(also=self._owners())
        space, g = VectorSpace.of(params), local(grads)
        if self.step.scaler and self._overflows(self.step.scaler, grads, space):
            return
        self.info = formulas.plain(g, space, full_info=True)._replace(refreshed=True)
        if not self.perturbation.use_base_momentum:
            self._accumulate(params, g, groups)
        self.step.set_ready()

    def _momentum(self) -> tuple[Tensors, Tensors, Tensor | None, list[int]]:
        """Returns the parameters to perturb, their v and its norm, and the indices of their groups."""
        if not self.groups.moves(self.state.count):
            return [], [], None, []
        owners = self._owners()
        entries = [(p, i) for i, group in enumerate(self.groups.base.param_groups) for p in group["params"]]
        is_trained = trained([p for p, _ in entries])
        entries = [(p, i) for (p, i), here in zip(entries, is_trained, strict=True) if here and p in owners]
        params, groups = [p for p, _ in entries], [i for _, i in entries]
        chosen = self.groups.perturbed(params, groups)
        params, groups = at(params, chosen), at(groups, chosen)
        if not params:
            return [], [], None, []
        v, norm = local([owners[p] for p in params]), self.state.norm
        if norm is None or len(params) < len(owners):  # v is the base's, or some of it does not count
            norm = VectorSpace.of(params).norm(v)
        return params, v, norm, groups

    def _owners(self) -> dict[Tensor, Tensor]:
        """Returns v by its parameters: the rule's own, or the base optimizer's."""
        if not self.perturbation.use_base_momentum:
            return self.state.kept
        check_base_momentum(self.groups.base, self.perturbation.momentum)
        buffers = ((p, state.get("momentum_buffer")) for p, state in self.groups.base.state.items())
        return {p: buffer for p, buffer in buffers if buffer is not None}

    def _accumulate(self, params: Tensors, g: Tensors, groups: list[int]) -> None:
        """Sets v to μ v + g, for the parameters that are perturbed; a g that is not finite leaves v as it was."""
        assert self.info is not None and self.info.grad_norm is not None
        chosen = self.groups.perturbed(params, groups)
        owners, state, g = at(params, chosen), self.state, at(g, chosen)
        if not owners:
            return
        space, usable = VectorSpace.of(owners), finite(self.info.grad_norm)
        v = state.v_of(owners, self.perturbation.store_dtype)
        momentum = torch.full_like(self.info.grad_norm, self.perturbation.momentum)
        tensors.accumulate_(usable, v, momentum, g, space.dtype)
        norm = space.norm(v)
        fits = finite(norm)  # a v that its dtype cannot hold starts anew
        tensors.zero_unless_(fits, v)
        state.norm = torch.where(fits, norm, 0)


def check_base_momentum(base: Optimizer, momentum: float) -> None:
    """Raises unless the base optimizer's momentum buffer is the v of MSAM.

    That of SGD is, with or without Nesterov momentum, which changes the update alone. Weight decay and dampening change
    what enters the buffer.
    """
    if not isinstance(base, torch.optim.SGD):
        raise TypeError(
            f"use_base_momentum=True needs the momentum buffer of torch.optim.SGD, and base is {type(base).__name__}; "
            "leave it out, so that the rule keeps its own."
        )
    for i, group in enumerate(base.param_groups):
        for name, expected in (("momentum", momentum), ("dampening", 0), ("weight_decay", 0)):
            if group[name] != expected:
                raise ValueError(
                    f"use_base_momentum=True needs {name}={expected} in the base optimizer, and group {i} has "
                    f"{name}={group[name]}: its buffer is not the v of this rule. Change that, or leave "
                    "use_base_momentum out."
                )
    if momentum == 0:
        raise ValueError("use_base_momentum=True needs momentum > 0: without momentum, SGD has no buffer.")
