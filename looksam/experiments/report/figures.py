"""Figures drawn with Matplotlib: the same data gives the same SVG file, byte for byte, and a PNG next to it.

``plot`` is the only place that draws a figure; ``page_figures`` embeds the same drawing in a page.
"""

import pathlib
import re
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from looksam.experiments.report.document import Figure, Heatmap
from looksam.experiments.report.plot_data import (
    Axis,
    PlottedSeries,
    fit_axis,
    heatmap_values,
    line_axes,
    plotted_series,
)

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

SIZE, HEATMAP_SIZE = (7.4, 3.9), (5.6, 4.3)  # of files, in inches
SETTINGS: Any = {  # for Matplotlib
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
    "lines.linewidth": 1.5,
    "lines.markersize": 5.0,
}


class Plot(NamedTuple):
    """A figure as Matplotlib holds it, without title and legend."""

    canvas: "matplotlib.figure.Figure"
    axes: "Axes"
    series: "list[list[Artist]]"  # what is drawn for each series; nothing for a heat map
    colorbar: "Axes | None" = None


def draw(figure: Figure | Heatmap, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write ``name.svg`` and ``name.png`` into the folder, which is created if it is missing."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{figure.name}.svg", folder / f"{figure.name}.png"
    size = HEATMAP_SIZE if isinstance(figure, Heatmap) else SIZE
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": figure.name}):
        canvas, axes, series, _ = plot(figure, size)
        title = textwrap.fill(figure.title, round(10 * size[0]))
        axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", pad=10)
        if len(series) > 1:
            canvas.legend(loc="outside right upper", fontsize=9, borderaxespad=0.3, handlelength=2.4)
        canvas.savefig(svg, metadata={"Date": None, "Creator": None})
        canvas.savefig(png, dpi=160, metadata={"Software": None})
    svg.write_text(shortened(svg.read_text()))
    return [svg, png]


def plot(figure: Figure | Heatmap, size: tuple[float, float]) -> Plot:
    """The figure at this size in inches, with labelled axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    if isinstance(figure, Heatmap):
        return Plot(canvas, axes, [], _plot_heatmap(canvas, axes, figure))
    return Plot(canvas, axes, _plot_lines(axes, figure))


def _plot_lines(axes: "Axes", figure: Figure) -> "list[list[Artist]]":
    curves = plotted_series(figure)
    x, y = line_axes(figure, curves)
    axes.set(xscale="log" if x.log else "linear", yscale="log" if y.log else "linear")
    axes.set(xlim=(x.low, x.high), ylim=(y.low, y.high))
    axes.minorticks_off()
    axes.set_xticks(x.ticks, x.labels)
    axes.set_yticks(y.ticks, y.labels)
    axes.grid(color="#000000", alpha=0.1, linewidth=0.6)
    artists = [_plot_series(axes, curve, y) for curve in curves]
    if not any(len(curve.x) for curve in curves):
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", color="#767676")
    return artists


def _plot_series(axes: "Axes", curve: PlottedSeries, y_axis: Axis) -> "list[Artist]":
    """Errors as a band or as bars, cut off where the axis ends, below the line with its markers."""
    colour = curve.style.colour
    artists: list[Artist] = []
    low, high = (np.clip(end, y_axis.low, y_axis.high) for end in curve.ends)
    if curve.has_band:
        artists.append(axes.fill_between(curve.x, low, high, color=colour, alpha=0.16, linewidth=0))
    elif curve.error is not None:
        bars = np.stack([low, high, np.full_like(low, np.nan)], axis=1)  # one path for all bars of the series
        artists += axes.plot(np.repeat(curve.x, 3), bars.ravel(), color=colour, linewidth=1.2)
    return [*artists, *axes.plot(curve.x, curve.y, label=curve.label, **line_settings(curve))]


def line_settings(curve: PlottedSeries) -> dict[str, Any]:
    """Matplotlib's settings for the line and the markers of a series."""
    style = curve.style
    return {
        "color": style.colour,
        "linestyle": ("--" if style.dashed else "-") if curve.line else "none",
        "marker": style.marker if curve.has_markers else None,
        "markerfacecolor": "white" if style.hollow else style.colour,
    }


def _plot_heatmap(canvas: "matplotlib.figure.Figure", axes: "Axes", figure: Heatmap) -> "Axes":
    """Draw the mesh, and return the axes of its colour bar."""
    from matplotlib.colors import LogNorm, Normalize

    values, colours = heatmap_values(figure)
    axes.set_facecolor("#BBBBBB")  # seen where a value is not a number
    norm = (LogNorm if figure.log else Normalize)(colours.low, colours.high)
    mesh = axes.pcolormesh(figure.x, figure.y, values, shading="nearest", cmap="viridis", norm=norm, rasterized=True)
    bar = canvas.colorbar(mesh, ax=axes, label=figure.value_label)
    bar.minorticks_off()
    bar.set_ticks(colours.ticks, labels=colours.labels)
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        ticks = fit_axis(limits, padding=0)
        axis.set_ticks(ticks.ticks, ticks.labels)
    return bar.ax


def shortened(svg: str) -> str:
    """Coordinates with two digits: a hundredth of a point cannot be seen."""
    attribute = re.compile(r'\b(d|x|y)="[^"]*"')
    return attribute.sub(lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), svg)
