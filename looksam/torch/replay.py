"""What surrounds the two passes: the random state and the model's buffers.

The second pass starts where the clean pass started and leaves behind what the clean pass left: both draw the same
dropout masks, and BatchNorm statistics come from the clean pass alone.
"""

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from looksam.torch.buffers import Buffers


class Replay:
    """Lets the second pass repeat the clean one: made before the clean pass, ``rewind`` between, ``finish`` after."""

    def __init__(self, buffers: Buffers, devices: Iterable[torch.device]) -> None:
        self._devices = tuple(devices)
        self._start = self._end = _generators(self._devices)
        self._buffers = buffers.record()

    def rewind(self, restart: bool = True) -> None:
        """Records the end of the clean pass and returns to its start (``restart=False`` if the start is unknown)."""
        self._end = _generators(self._devices)
        if restart:
            _restore(self._start)
        else:
            self._start = self._end
        self._buffers.rewind(restart)

    @property
    def repeated(self) -> bool:
        """Whether the second pass, if it drew from PyTorch's generators at all, ended where the clean one did."""
        return all(
            now.is_at(start) or now.is_at(end)
            for now, start, end in zip(_generators(self._devices), self._start, self._end, strict=False)
        )

    def finish(self) -> None:
        """Returns to the end of the clean pass."""
        _restore(self._end)
        self._buffers.finish()


class _Generator:
    """A global generator of random numbers, and the state it was in."""

    def __init__(self, read: Callable[..., Any], write: Callable[..., None], *which: torch.device) -> None:
        self._write, self._which, self._state = write, which, read(*which)

    def restore(self) -> None:
        self._write(self._state, *self._which)

    def is_at(self, other: "_Generator") -> bool:
        """Whether a generator of PyTorch is in the same state; for others always True, as dropout does not use them."""
        return not isinstance(self._state, torch.Tensor) or torch.equal(self._state, other._state)


def _restore(generators: list[_Generator]) -> None:
    for generator in generators:
        generator.restore()


def _generators(devices: Iterable[torch.device]) -> list[_Generator]:
    """Records PyTorch's generators, of the CPU and of the devices in use, and the global ones of Python and NumPy."""
    states = [_Generator(torch.get_rng_state, torch.set_rng_state)]
    for device in devices:
        backend = torch.get_device_module(device)
        which = () if device.type == "mps" else (device,)  # MPS has one device, and its functions take none
        states.append(_Generator(backend.get_rng_state, backend.set_rng_state, *which))
    states.append(_Generator(random.getstate, random.setstate))
    if "numpy" in sys.modules:  # last, as a pass may import it
        numpy = sys.modules["numpy"]
        states.append(_Generator(numpy.random.get_state, numpy.random.set_state))
    return states
