"""The model's buffers around the two passes: the second starts from those of the clean one, and leaves none changed."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from looksam.torch import tensors
from looksam.torch.sharding import local
from looksam.torch.tensors import Tensors

LARGE = 2**16  # bytes


class Buffers:
    """The buffers of a model. Those that training changes are copied for a second pass, and small ones always.

    A large buffer is copied once, to see whether the passes change it. If they do not, it counts as constant until
    PyTorch counts a change of it, and is not copied again.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._constant: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # with the version that was seen
        self._changing: dict[int, weakref.ref[Tensor]] = {}

    def __reduce__(self) -> tuple[type["Buffers"], tuple[nn.Module | None]]:
        return Buffers, (self._model,)  # the buffers of a copy are others

    def record(self) -> "RecordedBuffers":
        """Records where the clean pass starts."""
        return RecordedBuffers(self, list(self._model.modules()) if self._model is not None else [])

    def is_constant(self, x: Tensor) -> bool:
        """Whether the last passes that were watched left a large buffer as it was, and nothing changed it since."""
        seen = self._constant.get(id(x))
        return seen is not None and seen[0]() is x and seen[1] == x._version

    def is_changing(self, x: Tensor) -> bool:
        """Whether a large buffer is known to change."""
        seen = self._changing.get(id(x))
        return seen is not None and seen() is x

    def learn(self, x: Tensor, *, constant: bool) -> None:
        """Notes whether the passes changed a large buffer."""
        if constant:
            self._constant[id(x)] = weakref.ref(x), x._version
        else:
            self._changing[id(x)] = weakref.ref(x)


class RecordedBuffers:
    """The buffers at the start of a clean pass, and then at its end; one copy of each."""

    def __init__(self, owner: Buffers, modules: Sequence[nn.Module]) -> None:
        self._owner = owner
        self._slots = [(module._buffers, name) for module in modules for name in module._buffers]
        self._start = self._end = [buffers[name] for buffers, name in self._slots]
        writable = list({id(x): x for x in self._start if x is not None and _is_writable(x)}.values())
        self._small = local([x for x in writable if x.nbytes <= LARGE])
        self._copies = tensors.copies(self._small)
        large = [x for x in writable if x.nbytes > LARGE]
        self._constant = [(x, x._version) for x in large if owner.is_constant(x)]
        self._large = [_Copied(x, owner.is_changing(x)) for x in large if not owner.is_constant(x)]

    def rewind(self, restart: bool) -> None:
        """Records the end of the clean pass, and returns to its start if that is known."""
        self._end = [buffers[name] for buffers, name in self._slots]
        late = [_Copied(x, True) for x, version in self._constant if x._version != version]  # their start is not known
        ends = tensors.copies(self._small)
        if restart:
            self._put(self._start)
            _write(self._small, self._copies)
        self._copies = ends
        for buffer in self._large:
            buffer.rewind(restart)
        self._large += late

    def finish(self) -> None:
        """Returns to the end of the clean pass."""
        self._put(self._end)
        _write(self._small, self._copies)
        for buffer in self._large:
            buffer.finish()
            self._owner.learn(buffer.x, constant=not buffer.changed)

    def _put(self, tensors: list[Any]) -> None:
        """Puts these into the modules, which may have assigned others."""
        for (buffers, name), x in zip(self._slots, tensors, strict=True):
            buffers[name] = x


class _Copied:
    """A large buffer and its copy: at first of its start, and of the end of the clean pass where that differs."""

    def __init__(self, x: Tensor, changed: bool) -> None:
        self.x, self.changed = x, changed
        (self._own,) = local([x])
        self._copy = self._own.clone()

    def rewind(self, restart: bool) -> None:
        self.changed = self.changed or not restart or not torch.equal(self._own, self._copy)
        if self.changed:
            end = self._own.clone()
            if restart:
                self._own.copy_(self._copy)
            self._copy = end

    def finish(self) -> None:
        self.changed = self.changed or not torch.equal(self._own, self._copy)
        if self.changed:
            self._own.copy_(self._copy)


def _write(xs: Tensors, values: Tensors) -> None:
    if xs:
        torch._foreach_copy_(xs, values)


def _is_writable(x: Tensor) -> bool:
    """Whether a tensor can be written in place. If not (expanded, or of inference mode), nothing can change it."""
    strides = x.stride()
    if x.is_inference():
        return False
    return 0 not in strides or all(stride > 0 or size <= 1 for stride, size in zip(strides, x.shape, strict=True))


def statistics_of(params: Tensors) -> str | None:
    """Returns the class of a layer with some of these parameters whose running statistics training updates, if any.

    A parameter does not know its layer, so this looks through all objects; it is for one warning per optimizer. Such
    layers have a weight and a bias of one shape, without which there is nothing to look for.
    """
    shapes = [p.shape for p in params if p.ndim == 1]
    if len(set(shapes)) == len(shapes):
        return None
    own, kinds = {id(p) for p in params}, _subclasses(_NormBase)
    for x in gc.get_objects():
        if (
            type(x) in kinds
            and getattr(x, "running_mean", None) is not None
            and x.training
            and any(id(p) in own for p in x._parameters.values())
        ):
            return type(x).__name__
    return None


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))
