"""The weights at w, saved while the parameters are at w + ε: as a copy, or in half the memory of one."""

import torch
from torch import Tensor

from looksam.torch import tensors
from looksam.torch.tensors import Tensors

PIECE = 32_768  # entries that are worked on at a time; PyTorch does not split fewer among threads
FEW = 16  # a piece with more than one in this many entries that do not fit 16 bits is copied


class SavedWeights:
    """A copy of the weights."""

    def __init__(self, weights: Tensors, copies: Tensors) -> None:
        self._weights, self.copies = weights, copies

    def move(self, factors: Tensors, directions: Tensors, dtype: torch.dtype) -> None:
        """Adds ``factor * direction`` to each tensor."""
        tensors.add_scaled_(self._weights, factors, directions, dtype)

    def restore(self) -> None:
        """Puts the weights back, and frees the copy."""
        if self._weights:
            torch._foreach_copy_(self._weights, self.copies)
            self._weights = self.copies = ()


class HalfSavedWeights(SavedWeights):
    """Weights of float32, saved in 16 bits each.

    Since ε is known, (w + ε) − ε is w up to rounding, and the rounding is saved: as a difference of the two numbers'
    bits, read as integers. It fits 16 bits unless a weight is tiny next to its ε; such weights are copied. All this
    relies on a second pass that leaves the parameters as they are, which the sum of their bits tells.
    """

    def __init__(self, weights: Tensors, memory: Tensors) -> None:
        super().__init__(weights, ())
        self._memory = memory  # 16 bits per entry
        self._moved: list[tuple[_Piece, int]] = []  # with the sum of its bits
        self._current: tuple[Tensor, Tensor] | None = None  # a piece that is being moved, and its copy

    def move(self, factors: Tensors, directions: Tensors, dtype: torch.dtype) -> None:
        del dtype
        for factor, *whole in zip(factors, self._weights, directions, self._memory, strict=True):
            for w, direction, memory in zip(*(x.view(-1).split(PIECE) for x in whole), strict=True):
                piece, before = _Piece(w, direction, factor, memory.view(torch.int16)), w.clone()
                self._current = w, before
                self._moved.append((piece, piece.move(before)))
                self._current = None

    def restore(self) -> None:
        interrupted = None
        if self._current is not None:
            interrupted, before = self._current
            interrupted.copy_(before)
        pieces, self._moved, self._current = self._moved, [], None
        changed = [piece for piece, total in pieces if piece.w is not interrupted and not piece.restore(total)]
        self._weights = self._memory = ()
        if changed:
            raise RuntimeError(
                "the second pass changed a parameter itself, so that its value from before cannot be restored: with "
                "store_dtype it is not copied. Restart from a checkpoint, with store_dtype=None."
            )


class _Piece:
    """Some entries of a parameter, their part of ε as ``factor * direction``, and 16 bits of memory for each."""

    def __init__(self, w: Tensor, direction: Tensor, factor: Tensor, memory: Tensor) -> None:
        self.w, self._direction, self._factor, self._memory = w, direction, factor, memory
        self._others: Tensor | None = None  # the positions of entries that are copied,
        self._values: Tensor | None = None  # and the copies; all are copied where there are no positions

    def move(self, before: Tensor) -> int:
        """Adds ε, and returns the sum of the bits."""
        after = torch.addcmul(before, self._direction, self._factor)
        rounding = _bits(before) - _bits(self._approximately(after))
        self._memory.copy_(rounding)
        others = torch.nonzero(self._memory != rounding).view(-1)
        if len(others) > len(before) // FEW:
            self._values = before
        elif len(others):
            self._others, self._values = others, before[others]
        self.w.copy_(after)
        return int(_bits(self.w).sum())

    def restore(self, total: int) -> bool:
        """Puts the weights back, and returns whether they were still where ``move`` left them."""
        same = int(_bits(self.w).sum()) == total
        if self._values is not None and self._others is None:
            self.w.copy_(self._values)
            return True
        bits = _bits(self._approximately(self.w)).add_(self._memory)
        self.w.copy_(bits.view(torch.float32))
        if self._others is not None and self._values is not None:
            self.w[self._others] = self._values
        return same

    def _approximately(self, after: Tensor) -> Tensor:
        """Returns (w + ε) − ε: the same each time, to the bit."""
        return torch.addcmul(after, self._direction, self._factor, value=-1)


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)
