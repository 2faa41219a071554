"""The second pass starts where the clean pass started, and leaves behind what the clean pass left.

That is so for the random state (the same dropout in both passes) and for the buffers of the model (BatchNorm
statistics come from the clean pass alone).
"""

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from looksam.torch import vector
from looksam.torch.sharding import local


class Replay:
    """Made before the clean pass, rewound between the passes, finished after the second."""

    def __init__(self, model: nn.Module | None, devices: Iterable[torch.device]) -> None:
        self._model, self._devices = model, tuple(devices)
        self._start = self._snapshot()
        self._end: list[Callable[[], None]] = []

    def rewind(self, restart: bool = True) -> None:
        """Remember the end of the clean pass, and go to its start (``restart=False``: the start is not known)."""
        self._end = self._snapshot()
        if restart:
            _restore(self._start)

    def finish(self) -> None:
        """To the end of the clean pass."""
        _restore(self._end)

    def _snapshot(self) -> list[Callable[[], None]]:
        return [*_random_states(self._devices), _buffers(self._model)]


def _restore(snapshot: list[Callable[[], None]]) -> None:
    for restore in snapshot:
        restore()


def _random_states(devices: Iterable[torch.device]) -> list[Callable[[], None]]:
    """PyTorch's generators, of the CPU and of the devices in use, and the global ones of Python and NumPy."""
    states = [_state(torch.get_rng_state, torch.set_rng_state), _state(random.getstate, random.setstate)]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        states.append(_state(numpy.random.get_state, numpy.random.set_state))
    for device in devices:
        backend = torch.get_device_module(device)
        which = () if device.type == "mps" else (device,)  # there is one
        states.append(_state(backend.get_rng_state, backend.set_rng_state, *which))
    return states


def _state(read: Callable[..., Any], write: Callable[..., None], *which: torch.device) -> Callable[[], None]:
    value = read(*which)
    return lambda: write(value, *which)


def _buffers(model: nn.Module | None) -> Callable[[], None]:
    modules = list(model.modules()) if model is not None else []
    slots = [(module._buffers, name) for module in modules for name in module._buffers]
    held = [buffers[name] for buffers, name in slots]
    tensors = local([x for x in held if x is not None and _is_writable(x)])
    copies = vector.copies(tensors)

    def restore() -> None:
        for (buffers, name), buffer in zip(slots, held, strict=True):
            buffers[name] = buffer  # a module may have put another tensor there
        if tensors:
            torch._foreach_copy_(tensors, copies)

    return restore


def _is_writable(x: Tensor) -> bool:
    """Not so for an expanded tensor, which nothing can have changed in place either."""
    strides = x.stride()
    return 0 not in strides or all(stride > 0 or size <= 1 for stride, size in zip(strides, x.shape, strict=True))
