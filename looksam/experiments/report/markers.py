"""Matplotlib's markers as SVG paths, so that a method has one shape in every picture."""

from collections.abc import Iterable

_SIZE = 3.7
_UP = ((0.0, -1.25), (1.2, 0.95), (-1.2, 0.95))
_ARM = 0.42
_PLUS = (
    (-_ARM, -1.2), (_ARM, -1.2), (_ARM, -_ARM), (1.2, -_ARM), (1.2, _ARM), (_ARM, _ARM),
    (_ARM, 1.2), (-_ARM, 1.2), (-_ARM, _ARM), (-1.2, _ARM), (-1.2, -_ARM), (-_ARM, -_ARM),
)  # fmt: skip
_DIAGONAL = 0.7071
_SHAPES = {
    "s": ((-0.95, -0.95), (0.95, -0.95), (0.95, 0.95), (-0.95, 0.95)),
    "D": ((0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)),
    "^": _UP,
    "v": tuple((-x, -y) for x, y in _UP),
    "<": tuple((y, -x) for x, y in _UP),
    ">": tuple((-y, x) for x, y in _UP),
    "P": _PLUS,
    "X": tuple((_DIAGONAL * (x - y), _DIAGONAL * (x + y)) for x, y in _PLUS),
}


def marker_path(marker: str, x: Iterable[float], y: Iterable[float]) -> str:
    """One path with the marker at every point."""
    shape = _circle if marker == "o" else _polygon
    return "".join(shape(marker, a, b) for a, b in zip(x, y, strict=True))


def _circle(marker: str, x: float, y: float) -> str:
    del marker
    arc = f"a{_SIZE} {_SIZE} 0 1 0"
    return f"M{x - _SIZE:.1f} {y:.1f}{arc} {2 * _SIZE} 0{arc} {-2 * _SIZE} 0Z"


def _polygon(marker: str, x: float, y: float) -> str:
    corners = (f"{x + _SIZE * a:.1f} {y + _SIZE * b:.1f}" for a, b in _SHAPES[marker])
    return f"M{'L'.join(corners)}Z"
