"""Accelerate: the passes of a rule of this package in a loop with ``accelerator.accumulate()``.

A closure would not do: ``accumulate()`` leaves ``opt.step(closure)`` out for all micro-batches but the last.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from looksam.torch.frameworks import FrameworkScaler, InfoLog, Window, kept, sharpness_aware

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    raise ImportError(
        "looksam.torch.accelerate needs accelerate, which is not installed: pip install 'looksam[accelerate]'",
        name="accelerate",
    ) from error

Result = TypeVar("Result")


class PreparedWindow:
    """The micro-batches of a step with a model and an optimizer that an Accelerator has prepared."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: object) -> None:
        opt = sharpness_aware(optimizer)
        self._accelerator, self._info = accelerator, InfoLog()
        self._window = Window(opt, functools.partial(accelerator.no_sync, model))
        self._scaler = FrameworkScaler(accelerator.scaler, opt) if accelerator.scaler is not None else None

    @property
    def repeats(self) -> bool:
        """Whether a second pass is under way."""
        return self._window.repeats

    def run(self, backward: Callable[[], Result]) -> Result:
        """Runs a micro-batch, and after the last of a step, when gradients are synchronised, the second pass."""
        last = self._accelerator.sync_gradients
        result = self._window.run(backward, last=last, scaler=self._scaler)
        if last:
            self._info.add(self._window.opt.info)
            if self._scaler is not None and self._scaler.is_enabled():
                self._scaler.scale_again()
        return result

    def logs(self) -> dict[str, float]:
        """Returns ``opt.info`` as numbers, for the steps since the last call."""
        return self._info.take()


class Backward:
    """Computes losses and their gradients, in place of ``accelerator.backward``; on refresh steps also at w + ε.

    The rest of the loop is Accelerate's usual one. After the last micro-batch of a step .grad holds the gradient that
    the base optimizer gets, so ``accelerator.clip_grad_norm_`` clips that.

    Args:
      accelerator: an ``accelerate.Accelerator``.
      model: the model that it has prepared.
      optimizer: the optimizer of ``looksam.torch`` that it has prepared.
      loss_of: a function of a batch, ``loss_of(*batch)``, that returns the loss, or a tuple that begins with it.

    Example:
      >>> import torch
      >>> from accelerate import Accelerator
      >>> from looksam.torch import LookSAM
      >>> from looksam.torch.accelerate import Backward
      >>> accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
      >>> model = torch.nn.Linear(3, 1)
      >>> opt = LookSAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1, k=2, model=model)
      >>> model, opt = accelerator.prepare(model, opt)
      >>> backward = Backward(accelerator, model, opt, lambda x: model(x).square().mean())
      >>> for x in torch.ones(8, 5, 3):
      ...     with accelerator.accumulate(model):
      ...         loss = backward(x)
      ...         if accelerator.sync_gradients:
      ...             norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
      ...         opt.step()
      ...         opt.zero_grad()
      >>> backward.logs()["looksam/refreshed"]  # the share of steps that took a second gradient
      0.5
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: object,
        loss_of: Callable[..., Tensor | tuple[Any, ...]],
    ) -> None:
        self._window = PreparedWindow(accelerator, model, optimizer)
        self._accelerator, self._loss_of = accelerator, loss_of

    def __call__(self, *batch: Any, **named: Any) -> Any:
        """Runs the passes of a micro-batch, and returns what ``loss_of`` returned on the clean one."""
        saved, saved_by_name = [kept(x) for x in batch], {name: kept(x) for name, x in named.items()}

        def backward() -> Any:
            result = self._loss_of(*map(kept, saved), **{name: kept(x) for name, x in saved_by_name.items()})
            self._accelerator.backward(result[0] if isinstance(result, tuple) else result)
            return result

        return self._window.run(backward)

    def logs(self) -> dict[str, float]:
        """Returns ``opt.info`` as numbers, for the steps since the last call: ``accelerator.log(backward.logs())``."""
        return self._window.logs()
