"""What the integrations with training frameworks share: the micro-batches of a step, and numbers for their loggers.

A framework runs forward and backward passes itself, one micro-batch at a time. ``Window`` keeps what it takes to repeat
them, so that the second pass is over the same micro-batches, with the same dropout masks, as the clean one.
"""

import contextlib
import copy
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from looksam.torch.buffers import Buffers
from looksam.torch.formulas import StepInfo
from looksam.torch.optimizer import SharpnessAware
from looksam.torch.phase import Phase
from looksam.torch.replay import Replay
from looksam.torch.scaling import Scaler, enabled

Result = TypeVar("Result")


class MicroBatch(NamedTuple):
    """One part of the batch of a step."""

    backward: Callable[[], object]  # runs its forward and backward pass
    start: Replay  # the random states before them


class Window:
    """The micro-batches of the current step, which together are one batch.

    Args:
      opt: the optimizer that takes the steps.
      unsynchronised: returns the context in which gradients are not averaged over ranks, as in all micro-batches but
        the last.
    """

    def __init__(
        self, opt: SharpnessAware, unsynchronised: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    ) -> None:
        self.opt, self._unsynchronised = opt, unsynchronised
        self.clear()

    @property
    def repeats(self) -> bool:
        """Whether a second pass is under way."""
        return self._repeats

    def clear(self) -> None:
        """Forgets the micro-batches."""
        self._repeats = False
        self._micro_batches: list[MicroBatch] = []
        self._start: Replay | None = None  # before the first one, with the model's buffers

    def begin(self, backward: Callable[[], object], *, scaler: Scaler | None = None) -> None:
        """Prepares the first pass of a micro-batch, which the caller is about to run; ``backward`` would repeat it."""
        passes = self.opt._passes
        if passes.step.phase is Phase.SKIPPED:  # a framework's scaler has left opt.step() out
            self.opt.restore()
        if passes.perturbs_first:
            self.opt.ascend(scaler=scaler)
        elif passes.is_due:
            self._start = self._start or passes.new_replay()
            self._micro_batches.append(MicroBatch(backward, Replay(Buffers(None), passes.devices)))

    def pause(self) -> None:
        """Ends the first pass of a micro-batch that is not the last: the weights are at w until the next one."""
        if self.opt._passes.step.phase is Phase.PERTURBED:
            self.opt.restore()

    def finish(self, *, scaler: Scaler | None = None) -> None:
        """Ends the first pass of the last micro-batch, and leaves in .grad what the base optimizer gets.

        If the step takes a second gradient, all micro-batches are repeated at w + ε. ``opt.step()`` is to follow; the
        gradients may be clipped before.
        """
        opt, step = self.opt, self.opt._passes.step
        start, micro_batches = self._start, self._micro_batches
        self.clear()
        if not opt._passes.groups.have_gradients:
            return opt.restore()
        if opt.needs_second_pass:
            step.begin(start)
            second_pass = opt.ascend(scaler=scaler)
            if step.phase is Phase.PERTURBED:  # not if the clean gradient overflowed
                with second_pass:
                    self._repeat(micro_batches)
        with torch.no_grad():
            opt._prepare(enabled(scaler))
        if step.phase is Phase.IDLE:
            step.set_ready()

    def run(self, backward: Callable[[], Result], *, last: bool, scaler: Scaler | None = None) -> Result:
        """Runs a micro-batch, and after the last one the second pass; returns what its first pass returned."""
        try:
            self.begin(backward, scaler=scaler)
            result = backward()
            if last:
                self.finish(scaler=scaler)
            else:
                self.pause()
        except BaseException:
            self.opt.restore()
            self.clear()
            raise
        return result

    def _repeat(self, micro_batches: list[MicroBatch]) -> None:
        self._repeats = True
        for i, (backward, start) in enumerate(micro_batches):
            start.rewind()
            with self._unsynchronised() if i < len(micro_batches) - 1 else contextlib.nullcontext():
                backward()
        self._repeats = False


class FrameworkScaler:
    """A gradient scaler that the framework itself applies to ``opt``: it unscales .grad, and steps or skips ``opt``.

    Both passes have to be unscaled before. They are recorded under other optimizers, as a scaler has one record for
    each and refuses to unscale twice. ``scale_again`` undoes it, without rounding where scales are powers of 2.
    """

    def __init__(self, scaler: torch.amp.GradScaler, opt: SharpnessAware) -> None:
        self._scaler, self._opt = scaler, opt
        self._second_pass = types.SimpleNamespace(param_groups=opt.param_groups)
        opt._step_supports_amp_scaling = False  # the scaler unscales .grad, as for most optimizers, and counts skips

    def is_enabled(self) -> bool:
        return self._scaler.is_enabled()

    def unscale_(self, optimizer: Optimizer) -> None:
        self._second_pass.param_groups = self._opt.param_groups
        self._scaler.unscale_(self._second_pass if optimizer is self._opt else optimizer)  # type: ignore[arg-type]

    @property
    def _per_optimizer_states(self) -> Any:
        return self._scaler._per_optimizer_states

    def scale_again(self) -> None:
        """Leaves .grad, and the step, as the framework expects them."""
        self._opt._passes.step.scaler = None
        for p in self._opt._passes.groups.params:
            if p.grad is not None:
                p.grad.copy_(self._scaler.scale(p.grad))


class InfoLog:
    """What the steps since the last log did, as numbers for a logger. Between logs it waits for no device."""

    def __init__(self) -> None:
        self._last: StepInfo | None = None
        self._clear()

    def _clear(self) -> None:
        self._latest: dict[str, Tensor] = {}
        self._refreshed: list[bool] = []
        self._fell_back: list[Tensor] = []

    def add(self, info: StepInfo | None) -> None:
        """Adds what a step did; a step that did nothing leaves the info of the one before, which counts once."""
        if info is None or info is self._last:
            return
        self._last = info
        norms = {name: getattr(info, name) for name in ("grad_norm", "returned_norm", "g_v_norm", "cosine")}
        self._latest |= {name: value for name, value in norms.items() if value is not None}
        self._refreshed.append(info.refreshed)
        self._fell_back.append(info.fell_back)

    def take(self) -> dict[str, float]:
        """Returns the latest norms and cosine, and the share of steps that refreshed and that fell back to g."""
        if not self._refreshed:
            return {}
        steps = len(self._refreshed)
        shares = {"refreshed": sum(self._refreshed) / steps, "fell_back": sum(map(float, self._fell_back)) / steps}
        values = {name: float(value) for name, value in self._latest.items()} | shares
        self._clear()
        return {f"looksam/{name}": value for name, value in values.items()}


def kept(batch: Any) -> Any:
    """Returns a batch of which a training step may remove entries; the tensors are not copied."""
    return copy.copy(batch) if isinstance(batch, dict | list) else batch


def sharpness_aware(optimizer: object) -> SharpnessAware:
    """Returns the optimizer of this package inside the wrappers of a framework."""
    inner = optimizer
    while not isinstance(inner, SharpnessAware):
        inner = getattr(inner, "optimizer", None)
        if inner is None:
            raise TypeError(
                f"the optimizer is {type(optimizer).__name__}, which is none of looksam.torch; wrap it, as in "
                "LookSAM(optimizer, rho=0.1)."
            )
    return inner
