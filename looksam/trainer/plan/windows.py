"""The window of a convolution: which weights and input elements meet."""

import functools
import re
from typing import NamedTuple


class Window(NamedTuple):
    """Along one axis."""

    size: int
    stride: int = 1
    pad: int = 0  # before the input; what is behind it follows from the output's length
    lhs_dilate: int = 1  # distance between neighbours of the input, with holes in between
    rhs_dilate: int = 1  # the same of the weights


def parse_window(text: str | None, axes: int) -> list[Window]:
    """``{size=3x3 stride=2x2 pad=0_1x0_1}``, one window an axis. None: a convolution without spatial axes."""
    fields = dict(part.split("=") for part in (text or "").strip("{}").split())
    columns = {name: _numbers(name, value) for name, value in fields.items() if name in Window._fields}
    windows = [Window(**{name: column[axis] for name, column in columns.items()}) for axis in range(axes)]
    if any(len(column) != axes for column in columns.values()):
        raise ValueError(f"window {text!r} does not have {axes} axes.")
    return windows


@functools.cache
def pairs_that_meet(length: int, outputs: int, window: Window) -> int:
    """(output position, weight) pairs along an axis for which there is an input element: no padding, no hole."""
    spread = (length - 1) * window.lhs_dilate + 1
    places = (
        output * window.stride + weight * window.rhs_dilate - window.pad
        for output in range(outputs)
        for weight in range(window.size)
    )
    return sum(0 <= place < spread and place % window.lhs_dilate == 0 for place in places)


def _numbers(name: str, text: str) -> list[int]:
    """``3x3``, or for the padding ``0_1x0_1``, of which the part before the input is kept."""
    return [int(re.split(r"(?<=\d)_", part)[0] if name == "pad" else part) for part in text.split("x")]
