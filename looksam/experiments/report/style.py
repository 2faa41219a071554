"""How a method looks in every picture: Okabe and Ito's colours, which colour-blind readers can tell apart.

A marker says the same again, for print without colour. Each colour has a lighter twin for dark pages.
"""

from typing import NamedTuple

PAPER = "paper"


class Style(NamedTuple):
    """``marker`` is Matplotlib's letter; ``dark`` is the colour on a dark page."""

    colour: str
    dark: str
    marker: str
    dashed: bool = False
    hollow: bool = False


_BLACK = ("#000000", "#E8E8E8")
_BLUE = ("#0072B2", "#4FA8E0")
_VERMILION = ("#D55E00", "#F0803C")
_GREEN = ("#009E73", "#2CC295")
_PURPLE = ("#CC79A7", "#DB93BC")
_ORANGE = ("#E69F00", "#F0B429")
_SKY = ("#56B4E9", "#8FD3FF")
_GREY = ("#767676", "#9A9A9A")

METHODS = {
    "base": Style(*_BLACK, "o"),
    "sam": Style(*_VERMILION, "s"),
    "sam_k": Style(*_GREEN, "^"),
    "look_sam": Style(*_BLUE, "D"),
    "layer_sam": Style(*_PURPLE, "v"),
    "look_layer_sam": Style(*_ORANGE, "P"),
    PAPER: Style(*_GREY, "o", dashed=True, hollow=True),
}
# Seven colours and nine markers: no two of the first 63 numbers look alike. Each second round is dashed.
_COLOURS = (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY, _BLACK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


# Viridis at every tenth
_SHADES = ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"]


def style(name: str | int) -> Style:
    """The style of a method, of the paper's numbers, or of a number from 0.

    >>> style("sam").colour
    '#D55E00'
    >>> style(7).dashed
    True
    """
    if isinstance(name, int):
        return _numbered(name)
    if name not in METHODS:
        raise ValueError(f"style {name!r} is not known: use a number from 0, or one of {', '.join(METHODS)}.")
    return METHODS[name]


def _numbered(number: int) -> Style:
    if number < 0:
        raise ValueError(f"style {number} is negative: use a number from 0.")
    turn, place = divmod(number, len(_COLOURS))
    return Style(*_COLOURS[place], _MARKERS[number % len(_MARKERS)], dashed=turn % 2 == 1)


def shade(fraction: float) -> str:
    """The colour of a heat map, dark at 0 and light at 1.

    >>> shade(0.0), shade(0.05), shade(1.0)
    ('#440154', '#461264', '#fde725')
    """
    place = min(max(fraction, 0.0), 1.0) * (len(_SHADES) - 1)
    first = min(int(place), len(_SHADES) - 2)
    ends = zip(bytes.fromhex(_SHADES[first]), bytes.fromhex(_SHADES[first + 1]), strict=True)
    parts = [a + (place - first) * (b - a) for a, b in ends]
    return "#" + "".join(f"{round(part):02x}" for part in parts)
