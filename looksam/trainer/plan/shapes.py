"""Shapes as the compiler prints them: ``f32[64,128]{1,0}``, or a tuple of them."""

import math
import re
from typing import NamedTuple

# The layout in braces, if there is one, says nothing about the size.
_ARRAY = re.compile(r"\b(token|opaque|[a-z]+[a-z0-9]*)\[([^\]]*)\]")
_WIDTH = re.compile(r"(?:s|u|f|bf|c)(\d+)")


class Array(NamedTuple):
    """One array: its element type and the length of each axis."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return -(-self.size * bits(self.dtype) // 8)


Shape = tuple[Array, ...]  # the arrays of a tuple in order, nested ones too; one for a plain array


def parse_shape(text: str) -> Shape:
    """The arrays in a printed shape. A bounded axis, ``<=8``, counts at its bound."""
    return tuple(Array(dtype, _dims(dims)) for dtype, dims in _ARRAY.findall(text))


def total_bytes(shape: Shape) -> int:
    return sum(array.bytes for array in shape)


def bits(dtype: str) -> int:
    """Of one element. The first number in a name is its width: bf16, s4, f8e4m3fn."""
    if dtype in ("token", "opaque"):
        return 0
    if dtype == "pred":
        return 8
    width = _WIDTH.match(dtype)
    if not width:
        raise ValueError(f"element type {dtype!r} has no known width; looksam.trainer.plan.shapes must learn it.")
    return int(width[1])


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(part.strip().removeprefix("<=")) for part in text.split(",") if part.strip())
