"""Figures as files: the same data gives the same SVG, byte by byte, and a PNG beside it."""

import pathlib
import re
import textwrap
from typing import Any

import numpy as np

from looksam.experiments.report.axes import Axis, axis
from looksam.experiments.report.points import Points, drawn, heights, shades
from looksam.experiments.report.section import Figure, Heatmap

SIZE = (7.4, 3.9)  # inches
SETTINGS: Any = {  # of Matplotlib
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a dollar is a dollar
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "legend.frameon": False,
}


def draw(figure: Figure | Heatmap, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write ``name.svg`` and ``name.png`` into the folder, which is made if it is missing."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{figure.name}.svg", folder / f"{figure.name}.png"
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": figure.name}):
        picture = _heatmap(figure) if isinstance(figure, Heatmap) else _figure(figure)
        picture.savefig(svg, metadata={"Date": None, "Creator": None})
        picture.savefig(png, dpi=160, metadata={"Software": None})
    svg.write_text(_shortened(svg.read_text()))
    return [svg, png]


def _figure(figure: Figure) -> Any:
    picture, axes = _empty(figure)
    lines = drawn(figure)
    across = axis((x for points in lines for x in points.x), figure.log_x, stops=any(points.line for points in lines))
    up = axis(heights(lines, figure.log_y), figure.log_y)
    _scale(axes, across, up)
    axes.grid(color="#000000", alpha=0.1, linewidth=0.6)
    for points in lines:
        _series(axes, points, up)
    if not any(len(points.x) for points in lines):
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", color="#767676")
    if len(lines) > 1:
        picture.legend(loc="outside right upper", fontsize=9, borderaxespad=0.3, handlelength=2.4)
    return picture


def _series(axes: Any, points: Points, up: Axis) -> None:
    look = points.style
    low, high = (np.clip(points.y + sign * points.errors, up.low, up.high) for sign in (-1, 1))
    if points.band:
        axes.fill_between(points.x, low, high, color=look.colour, alpha=0.16, linewidth=0)
    elif points.error is not None:
        bars = np.stack([low, high, np.full_like(low, np.nan)], axis=1)  # one path for all bars of the series
        axes.plot(np.repeat(points.x, 3), bars.ravel(), color=look.colour, linewidth=1.2)
    axes.plot(
        points.x,
        points.y,
        color=look.colour,
        linestyle=("--" if look.dashed else "-") if points.line else "none",
        linewidth=1.5,
        marker=look.marker if points.marked else None,
        markersize=5,
        markerfacecolor="white" if look.hollow else look.colour,
        label=points.label,
    )


def _heatmap(figure: Heatmap) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    picture, axes = _empty(figure, size=(5.6, 4.3))
    values, colours = shades(figure)
    axes.set_facecolor("#BBBBBB")  # what is not a number
    norm = (LogNorm if figure.log else Normalize)(colours.low, colours.high)
    mesh = axes.pcolormesh(figure.x, figure.y, values, shading="nearest", cmap="viridis", norm=norm, rasterized=True)
    bar = picture.colorbar(mesh, ax=axes, label=figure.value_label)
    bar.minorticks_off()
    bar.set_ticks(colours.ticks, labels=colours.labels)
    for place, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        place.set_ticks(*axis(ends, pad=0)[3:])
    return picture


def _empty(figure: Figure | Heatmap, size: tuple[float, float] = SIZE) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=size, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    title = textwrap.fill(figure.title, round(10 * size[0]))
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", pad=10)
    return picture, axes


def _scale(axes: Any, across: Axis, up: Axis) -> None:
    axes.set(xscale="log" if across.log else "linear", yscale="log" if up.log else "linear")
    axes.set(xlim=(across.low, across.high), ylim=(up.low, up.high))
    axes.minorticks_off()
    axes.set_xticks(across.ticks, across.labels)
    axes.set_yticks(up.ticks, up.labels)


def _shortened(svg: str) -> str:
    """Coordinates to two digits: a hundredth of a point is not seen."""
    attribute = re.compile(r'\b(d|x|y)="[^"]*"')
    return attribute.sub(lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
