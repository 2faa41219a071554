"""Guard rails: gradients that a closure would clear or never see, and attributes of other libraries."""

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from looksam.torch.param_groups import ParamGroups
from looksam.torch.sharding import local
from looksam.torch.tensors import Tensors

FRAMEWORKS = (
    "Where a framework calls the step, use looksam.torch.lightning, looksam.torch.accelerate or "
    "looksam.torch.transformers."
)
FRAMES = 10  # at most, from a framework's call of the step to the guard: decorators of torch, and schedulers' wrappers


class Absent:
    """An attribute that people look for and that is not there, with a message that names what is."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        raise AttributeError(self._message)

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(self._message)


PASSES = Absent(
    "there is no first_step, second_step or descent_step: opt.step(closure) takes both passes, or opt.ascend() and "
    "opt.step() without a closure. docs/porting.md has both loops next to each other."
)
BASE = Absent("there is no base_optimizer: the wrapped optimizer is opt.base. docs/porting.md has more names.")
SETTINGS = Absent("rho and alpha are settings of the param groups; use opt.param_groups[0]['rho'], and so on.")


NONE = (lambda: None), 0  # of a parameter without a gradient


class Leftovers:
    """Which gradients were there when a step ended, and their versions, which every change in place counts up.

    With ``weights_too``, the versions of the weights as well.
    """

    def __init__(self, weights_too: bool = False) -> None:
        self._known: list[tuple[Callable[[], Tensor | None], int]] = []  # in the order of the parameters
        self._weights_too, self._weights = weights_too, dict[int, int]()

    def __reduce__(self) -> tuple[type["Leftovers"], tuple[bool]]:
        return Leftovers, (self._weights_too,)  # the gradients of a copy are others

    def remember(self, groups: ParamGroups) -> None:
        """Notes the current gradients, and weights."""
        if self._weights_too:
            self._weights = {id(p): p._version for p in groups.params}
        grads = [p.grad for p in groups.params]
        self._known = [NONE if x is None else (weakref.ref(x), x._version) for x in grads]

    def check(self, groups: ParamGroups) -> None:
        """Raises if there are others: a closure that is called now would clear them."""
        params, known = groups.params, self._known
        if len(params) == len(known):  # the usual case, on every step
            params = [
                p
                for p, (ref, version) in zip(params, known, strict=True)
                if (x := p.grad) is not None and (ref() is not x or x._version != version)
            ]
        versions = {id(ref()): version for ref, version in known} if params else {}
        new = [p for p in params if p.grad is not None and versions.get(id(p.grad)) != p.grad._version]
        new = [p for p in new if _is_nonzero(p.grad)]  # this waits for the device
        if new:
            raise RuntimeError(
                f"{len(new)} parameters, the first of which is {groups.described(new[0])}, have gradients of a "
                "backward pass since the last step, and opt.step(closure) would clear them. To accumulate gradients, "
                "run all micro-batches in the closure, each loss divided by their number; for a pass of your own "
                "before, leave the closure out and use opt.ascend(). If they are not needed, call opt.zero_grad(). "
                f"{FRAMEWORKS}"
            )

    def left_alone(self, weights: Tensors) -> bool:
        """Whether nothing has changed the weights since, as far as PyTorch counts it."""
        return all(self._weights.get(id(p)) == p._version for p in weights)


def _is_nonzero(grad: Tensor | None) -> bool:
    return grad is not None and (grad.layout != torch.strided or bool(torch.any(local([grad])[0] != 0)))


def refuse_accumulating_accelerate() -> None:
    """Raises if ``opt.step(closure)`` is called by Accelerate while it accumulates gradients.

    In ``accelerator.accumulate()``, it leaves the calls for all micro-batches but the last out, with their closures.
    """
    module = sys.modules.get("accelerate.state")
    if module is None or not module.GradientState._shared_state or module.GradientState().num_steps == 1:
        return
    frame = sys._getframe(1)
    for _ in range(FRAMES):
        if frame.f_globals.get("__name__") == "accelerate.optimizer":
            raise RuntimeError(
                f"opt.step(closure) with gradient_accumulation_steps={module.GradientState().num_steps} of Accelerate, "
                "which would run the closure of the last micro-batch only; use looksam.torch.accelerate.Backward, or "
                "gradient_accumulation_steps=1 and all micro-batches in the closure."
            )
        if frame.f_back is None:
            return
        frame = frame.f_back
