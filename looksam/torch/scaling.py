"""The gradient scaler of fp16: whose gradients it unscales, steps that it takes itself, and passes that failed."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from looksam.torch import tensors
from looksam.torch.sharding import VectorSpace, local
from looksam.torch.tensors import Tensors


class Scaler(Protocol):
    """The methods of ``torch.amp.GradScaler`` that the rules call.

    A scaler keeps one record of overflow per optimizer that it unscales, and refuses a second call until its update.
    The wrapper and its base are two optimizers over the same parameters: the clean pass is recorded under the base, and
    the second pass under the wrapper, so that its overflow lowers the scale as well.
    """

    def is_enabled(self) -> bool: ...
    def unscale_(self, optimizer: Optimizer) -> None: ...


def enabled(scaler: Scaler | None) -> Scaler | None:
    """Returns the scaler if there is one and it is enabled, else None."""
    return scaler if scaler is not None and scaler.is_enabled() else None


def overflowed(g: Tensors, space: VectorSpace) -> bool:
    """Whether any entry is not finite. Waits for the device, as the scaler itself does on every step."""
    if torch.isfinite(space.norm(g)):
        return False
    bad = torch.stack([(~torch.isfinite(x)).sum().to(g[0].device, space.dtype) for x in g])
    return bool(space.summed(bad).sum() > 0)


class HandedOver:
    """What ``GradScaler.step(opt)`` hands over in place of itself: the scale that the gradients still have.

    It sets two attributes of the optimizer for the time of its call, and would leave them there if the step raised. It
    has recorded the overflow of these gradients itself.
    """

    def __init__(self, scale: Tensor | None, found_inf: Any) -> None:
        self._scale, self._found_inf = scale, found_inf

    def give_back(self, optimizer: Optimizer) -> None:
        """Sets the attributes again, which the scaler is about to delete."""
        optimizer.__dict__.update(grad_scale=self._scale, found_inf=self._found_inf)

    def is_enabled(self) -> bool:
        return True

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscales the gradients, unless ``GradScaler.unscale_(opt)`` did."""
        if self._scale is None:
            return
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        wide = self._scale if self._scale.device.type == "mps" else self._scale.double()
        tensors.scale_(local(grads), wide.reciprocal().float())


def handed_over(optimizer: Optimizer, closure: object) -> HandedOver | None:
    """Returns what the scaler that called ``optimizer.step(closure)`` handed over; None if no scaler did."""
    if "found_inf" not in optimizer.__dict__:
        return None
    handed = HandedOver(optimizer.__dict__.pop("grad_scale"), optimizer.__dict__.pop("found_inf"))
    if closure is not None:
        raise RuntimeError(
            "scaler.step(opt, closure) looks for overflow before the closure computes the gradients; call "
            "opt.step(closure, scaler=scaler) on the optimizer itself, then scaler.update()."
        )
    return handed


def check_same(of_passes: Scaler | None, of_step: Scaler | None) -> None:
    """Raises if a step has another scaler than the passes before it: its gradient may still be scaled."""
    same = of_passes is not None if isinstance(of_step, HandedOver) else of_passes is of_step
    if not same:
        raise RuntimeError("opt.ascend and opt.step got different scalers; pass scaler= to both.")


def check_not_unscaled(scaler: Scaler | None, optimizer: Optimizer) -> None:
    """Raises if the scaler has unscaled the optimizer's gradients, which the rule would then do a second time."""
    state = _record(scaler, optimizer)
    if state is not None and state["stage"] is OptState.UNSCALED:
        raise RuntimeError(
            "scaler.unscale_(opt) was called since the last scaler.update(). The rule unscales the gradients itself: "
            "leave scaler.unscale_ out, clip by clip_norm=, and call scaler.update() after every step."
        )


def forget(scaler: Scaler | None, *optimizers: Optimizer) -> None:
    """Lets the scaler unscale new gradients of these optimizers after a pass that failed; it has no call for that."""
    for optimizer in optimizers:
        state = _record(scaler, optimizer)
        if state is not None:
            state["stage"] = OptState.READY


def _record(scaler: Scaler | None, optimizer: Optimizer) -> dict[str, Any] | None:
    """Returns what a scaler recorded of an optimizer, None if nothing. It is private to PyTorch, so not relied upon."""
    records: dict[int, dict[str, Any]] = getattr(scaler, "_per_optimizer_states", {})
    return records.get(id(optimizer))
