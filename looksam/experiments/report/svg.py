"""Figures as SVG inside a page. The colours come from the page, so that they follow its light or dark theme."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from looksam.experiments.report.axes import Axis, axis, number_text
from looksam.experiments.report.markers import marker_path
from looksam.experiments.report.points import Points, drawn, heights, shades
from looksam.experiments.report.section import Figure, Heatmap
from looksam.experiments.report.style import Style, shade

WIDTH, HEIGHT = 560, 350
LEFT, RIGHT, TOP, BOTTOM = 58, 546, 34, 302  # the frame of the plot
HEAT_RIGHT = 462  # the scale of a heat map stands beside it
LEVELS = 64  # colours of a heat map


class Drawing(NamedTuple):
    """``points`` is what hovering tells: for each series its label and [across, down, x, y] of each point."""

    svg: str
    points: list[dict[str, Any]]


def draw_lines(figure: Figure) -> Drawing:
    lines = drawn(figure)
    across = axis((x for points in lines for x in points.x), figure.log_x, stops=any(points.line for points in lines))
    up = axis(heights(lines, figure.log_y), figure.log_y)
    parts = [*_frame(across, up, figure, RIGHT)]
    hover = []
    for points in lines:
        x, y = _across(across, points.x, RIGHT), _down(up, points.y)
        parts.append(_series(points, x, y, up))
        hover.append({"label": points.label, "points": _told(points, x, y)})
    if not any(len(points.x) for points in lines):
        parts.append(_text((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2, "no finite value", "label middle"))
    return Drawing(_svg(figure, parts), hover)


def draw_heatmap(figure: Heatmap) -> Drawing:
    """Each row is a series to hovering, so that the arrow keys walk over the map."""
    values, colours = shades(figure)
    edges = [_edges(np.asarray(side, dtype=np.float64)) for side in (figure.x, figure.y)]
    across, up = (axis(side, pad=0) for side in edges)
    right, down = _across(across, edges[0], HEAT_RIGHT), _down(up, edges[1])
    parts = [*_cells(values, colours, right, down), *_frame(across, up, figure, HEAT_RIGHT), *_scale(colours, figure)]
    middles = _across(across, np.asarray(figure.x, dtype=np.float64), HEAT_RIGHT)
    hover = [
        {"label": f"{figure.y_label} {number_text(y)}", "points": _told_row(figure.x, row, middles, (a + b) / 2)}
        for y, row, a, b in zip(figure.y, values, down, down[1:], strict=False)
    ]
    return Drawing(_svg(figure, parts), hover)


def swatch(look: Style, line: bool, marked: bool) -> str:
    """The sample of a legend."""
    stroke = '<path class="line" d="M1 8H27"/>' if line else ""
    marker = f'<path class="marker" d="{marker_path(look.marker, [14], [8])}"/>' if marked else ""
    return f'<svg class="swatch" viewBox="0 0 28 16" aria-hidden="true">{stroke}{marker}</svg>'


def looks(look: Style) -> str:
    """The classes of what is drawn in this style, its colour aside."""
    return " ".join(name for name, on in (("dashed", look.dashed), ("hollow", look.hollow)) if on)


def _svg(figure: Figure | Heatmap, parts: Iterable[str]) -> str:
    label = escape(f"{figure.title}. {figure.y_label} against {figure.x_label}. Arrow keys walk over the values.")
    ring = '<circle class="ring" r="7" cx="-20" cy="-20"/>'
    head = f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{label}">'
    return f"{head}{''.join(parts)}{ring}</svg>"


def _across(across: Axis, x: np.ndarray, right: float) -> np.ndarray:
    return LEFT + (right - LEFT) * across.place(x)


def _down(up: Axis, y: np.ndarray) -> np.ndarray:
    return BOTTOM - (BOTTOM - TOP) * up.place(y)


def _frame(across: Axis, up: Axis, figure: Figure | Heatmap, right: float) -> Iterator[str]:
    grid = not isinstance(figure, Heatmap)
    for y, label in zip(_down(up, np.array(up.ticks)), up.labels, strict=True):
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>' if grid else ""
        yield _text(LEFT - 8, y + 4, label, "tick end")
    for x, label in zip(_across(across, np.array(across.ticks), right), across.labels, strict=True):
        yield f'<path class="tickmark" d="M{x:.1f} {BOTTOM}v5"/>'
        yield _text(x, BOTTOM + 20, label, "tick middle")
    yield f'<path class="axis" d="M{LEFT} {BOTTOM}H{right}"/>'
    yield _text(2, 14, figure.y_label, "label")
    yield _text((LEFT + right) / 2, HEIGHT - 6, figure.x_label, "label middle")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _series(points: Points, x: np.ndarray, y: np.ndarray, up: Axis) -> str:
    low, high = (_down(up, points.y + sign * points.errors) for sign in (-1, 1))
    parts = []
    if points.band:
        parts.append(f'<path class="band" d="M{_joined([*x, *x[::-1]], [*high, *low[::-1]])}Z"/>')
    elif points.error is not None:
        bars = "".join(f"M{a:.1f} {b:.1f}V{c:.1f}" for a, b, c in zip(x, low, high, strict=True))
        parts.append(f'<path class="bar" d="{bars}"/>')
    if points.line and len(x) > 1:
        parts.append(f'<path class="line" d="M{_joined(x, y)}"/>')
    if points.marked:
        parts.append(f'<path class="marker" d="{marker_path(points.style.marker, x, y)}"/>')
    return f'<g class="series {points.name} {looks(points.style)}">{"".join(parts)}</g>'


def _joined(x: Iterable[float], y: Iterable[float]) -> str:
    return "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _told(points: Points, x: np.ndarray, y: np.ndarray) -> list[list[Any]]:
    texts = [number_text(value) for value in points.y]
    if points.error is not None:
        texts = [f"{text} ± {error:.2g}" for text, error in zip(texts, points.error, strict=True)]
    names = map(number_text, points.x)
    return [[round(a, 1), round(b, 1), *said] for a, b, *said in zip(x.tolist(), y.tolist(), names, texts, strict=True)]


def _told_row(x: Sequence[float], row: np.ndarray, across: np.ndarray, down: float) -> list[list[Any]]:
    texts = [number_text(value) if np.isfinite(value) else "none" for value in row]
    columns = zip(x, across.tolist(), texts, strict=True)
    return [[round(place, 1), round(float(down), 1), number_text(value), text] for value, place, text in columns]


def _edges(middles: np.ndarray) -> np.ndarray:
    """Of the cells around these middles."""
    if len(middles) < 2:
        return np.array([middle + side for middle in middles for side in (-0.5, 0.5)])
    between = (middles[1:] + middles[:-1]) / 2
    return np.concatenate([[2 * middles[0] - between[0]], between, [2 * middles[-1] - between[-1]]])


def _cells(values: np.ndarray, colours: Axis, right: np.ndarray, down: np.ndarray) -> Iterator[str]:
    """One path for all cells of a colour."""
    paths: dict[str, list[str]] = {}
    for (row, column), value in np.ndenumerate(values):
        place = colours.place(value)
        colour = shade(round(float(place) * LEVELS) / LEVELS) if np.isfinite(value) else "#bbbbbb"
        cell = f"M{right[column]:.1f} {down[row]:.1f}H{right[column + 1]:.1f}V{down[row + 1]:.1f}H{right[column]:.1f}Z"
        paths.setdefault(colour, []).append(cell)
    for colour, cells in sorted(paths.items()):
        yield f'<path class="cell" fill="{colour}" d="{"".join(cells)}"/>'


def _scale(colours: Axis, figure: Heatmap) -> Iterator[str]:
    left, height = HEAT_RIGHT + 22, (BOTTOM - TOP) / LEVELS
    for level in range(LEVELS):
        colour, top = shade(level / (LEVELS - 1)), BOTTOM - (level + 1) * height
        yield f'<path class="cell" fill="{colour}" d="M{left} {top:.1f}h14v{height + 0.3:.1f}h-14Z"/>'
    for y, label in zip(_down(colours, np.array(colours.ticks)), colours.labels, strict=True):
        yield _text(left + 20, y + 4, label, "tick")
    yield _text(WIDTH - 2, 14, figure.value_label, "label end")
