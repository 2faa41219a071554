"""What surrounds the two passes: the random state, the model's buffers, and the gradient scaler of fp16.

The second pass starts where the clean pass started and leaves behind what the clean pass left: both draw the same
dropout masks, and BatchNorm statistics come from the clean pass alone.
"""

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from looksam.torch import tensors
from looksam.torch.sharding import VectorSpace, local
from looksam.torch.tensors import Tensors

Snapshot = list[Callable[[], None]]  # functions that restore what was recorded


class Replay:
    """Lets the second pass repeat the clean one: made before the clean pass, ``rewind`` between, ``finish`` after."""

    def __init__(self, model: nn.Module | None, devices: Iterable[torch.device]) -> None:
        self._model, self._devices = model, tuple(devices)
        self._start = self._snapshot()
        self._end: Snapshot = []

    def rewind(self, restart: bool = True) -> None:
        """Records the end of the clean pass and returns to its start (``restart=False`` if the start is unknown)."""
        self._end = self._snapshot()
        if restart:
            _restore(self._start)

    def finish(self) -> None:
        """Returns to the end of the clean pass."""
        _restore(self._end)

    def _snapshot(self) -> Snapshot:
        return [*_random_states(self._devices), _buffers(self._model)]


def _restore(snapshot: Snapshot) -> None:
    for restore in snapshot:
        restore()


def _random_states(devices: Iterable[torch.device]) -> Snapshot:
    """Records PyTorch's generators, of the CPU and of the devices in use, and the global ones of Python and NumPy."""
    states = [_state(torch.get_rng_state, torch.set_rng_state), _state(random.getstate, random.setstate)]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        states.append(_state(numpy.random.get_state, numpy.random.set_state))
    for device in devices:
        backend = torch.get_device_module(device)
        which = () if device.type == "mps" else (device,)  # MPS has one device, and its functions take none
        states.append(_state(backend.get_rng_state, backend.set_rng_state, *which))
    return states


def _state(read: Callable[..., Any], write: Callable[..., None], *which: torch.device) -> Callable[[], None]:
    value = read(*which)
    return lambda: write(value, *which)


def _buffers(model: nn.Module | None) -> Callable[[], None]:
    """Records all buffers of the model: which tensors they are, and their values."""
    modules = list(model.modules()) if model is not None else []
    slots = [(module._buffers, name) for module in modules for name in module._buffers]
    current = [buffers[name] for buffers, name in slots]
    writable = local([x for x in current if x is not None and _is_writable(x)])
    copies = tensors.copies(writable)

    def restore() -> None:
        for (buffers, name), buffer in zip(slots, current, strict=True):
            buffers[name] = buffer  # a module may have assigned another tensor
        if writable:
            torch._foreach_copy_(writable, copies)

    return restore


def _is_writable(x: Tensor) -> bool:
    """Whether a tensor can be written in place; an expanded one cannot, so nothing can have changed it either."""
    strides = x.stride()
    return 0 not in strides or all(stride > 0 or size <= 1 for stride, size in zip(strides, x.shape, strict=True))


class Scaler(Protocol):
    """The methods of ``torch.amp.GradScaler`` that the rules call.

    A scaler keeps one record of overflow per optimizer that it unscales, and refuses a second call until its update.
    The wrapper and its base are two optimizers over the same parameters: the clean pass is recorded under the base,
    which the scaler then steps or skips, and the second pass under the wrapper, so that its overflow lowers the scale
    as well.
    """

    def is_enabled(self) -> bool: ...
    def unscale_(self, optimizer: Optimizer) -> None: ...
    def step(self, optimizer: Optimizer) -> float | None: ...


def enabled(scaler: Scaler | None) -> Scaler | None:
    """Returns the scaler if there is one and it is enabled, else None."""
    return scaler if scaler is not None and scaler.is_enabled() else None


def overflowed(g: Tensors, space: VectorSpace) -> bool:
    """Whether any entry is not finite. Waits for the device, as the scaler itself does on every step."""
    if torch.isfinite(space.norm(g)):
        return False
    bad = torch.stack([(~torch.isfinite(x)).sum().to(g[0].device, space.dtype) for x in g])
    return bool(space.summed(bad).sum() > 0)
