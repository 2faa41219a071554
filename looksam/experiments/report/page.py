"""A report as one HTML file that needs nothing else: no network, no library, no font to fetch.

Its figures are Matplotlib's SVG, as in the files, with a list of values that the page's script shows on hovering.
"""

import base64
import hashlib
import io
import math
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from looksam.experiments.report.document import Entry, Figure, Heatmap, Link, Section, Table, Value
from looksam.experiments.report.figures import SETTINGS, Plot, line_settings, plot, shortened
from looksam.experiments.report.plot_data import PlottedSeries, heatmap_values, number_text, plotted_series, style
from looksam.experiments.report.text import entry_text, left_columns, source_text

LONG = 28  # characters of a table's entry, beyond which it may be broken into lines


def page(sections: Sequence[Section], title: str, intro: Sequence[str] = ()) -> str:
    """The whole file. ``intro`` explains how to read it, one paragraph each. A section's name is its address."""
    _check_names(sections)
    environment = Environment(
        loader=PackageLoader("looksam.experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    environment.globals |= {"source_text": source_text, "table_columns": _columns, "table_rows": _rows}
    css, script = _asset("page.css") + _colours(sections), _asset("page.js")
    policy = (  # nothing is loaded from anywhere, and no script runs but ours
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template("page.html").render(
        title=title,
        intro=intro,
        sections=sections,
        figures=_embedded(sections),
        css=css,
        script=script,
        policy=policy,
    )


def _check_names(sections: Sequence[Section]) -> None:
    for name, times in Counter(section.name for section in sections).items():
        if times > 1 or not name or any(map(str.isspace, name)) or name == "theme":
            fault = f"is the name of {times} sections" if times > 1 else "is not a valid name for a section"
            raise ValueError(f"{name!r} {fault}: give each its own, without spaces, and not 'theme'.")


def _asset(name: str) -> str:
    return (resources.files("looksam.experiments.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _colours(sections: Sequence[Section]) -> str:
    """The colour of each style in the page, on a light and on a dark background."""
    figures = [figure for section in sections for figure in section.figures if isinstance(figure, Figure)]
    names = sorted({series.style for figure in figures for series in figure.series}, key=str)
    pairs = [(name, f"{style(name).colour}, {style(name).dark}") for name in names]
    return "".join(f".style-{name} {{ --c: light-dark({colours}); }}\n" for name, colours in pairs)


def _embedded(sections: Sequence[Section]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each section, by its name; each has a prefix of its own for the ids inside it."""
    return {
        section.name: [_figure(figure, f"f{i}-{j}") for j, figure in enumerate(section.figures)]
        for i, section in enumerate(sections)
    }


def _figure(figure: Figure | Heatmap, prefix: str) -> dict[str, Any]:
    svg, series, swatches = embed(figure, prefix)
    value_label = figure.value_label if isinstance(figure, Heatmap) else figure.y_label
    data = {"x": figure.x_label, "y": value_label, "series": series}
    return {"name": figure.name, "title": figure.title, "svg": svg, "swatches": swatches, "data": data}


def _columns(table: Table) -> list[tuple[str, str]]:
    """The name of each column and its CSS classes: words or numbers, ours or the paper's."""
    left = left_columns(table)
    sides = ["words" if index in left else "number" for index in range(len(table.columns))]
    papers = [" paper" if "paper" in name.lower() else "" for name in table.columns]
    return [(name, side + paper) for name, side, paper in zip(table.columns, sides, papers, strict=True)]


def _rows(table: Table) -> list[list[tuple[str, str, float | None, str | None]]]:
    """For each entry its text, its CSS classes, the number by which it sorts, and the section that it leads to."""
    kinds = [kind for _, kind in _columns(table)]
    return [[_cell(entry, kind) for entry, kind in zip(row, kinds, strict=True)] for row in table.rows]


def _cell(entry: Entry, kind: str) -> tuple[str, str, float | None, str | None]:
    text = entry_text(entry)
    shown = text.replace("-", "−") if isinstance(entry, Value) else text
    section = entry.section if isinstance(entry, Link) else None
    return shown, kind + " long" * (len(text) > LONG), _number(entry), section


def _number(entry: Entry) -> float | None:
    """The number by which the entry sorts; a string that is a number is one."""
    try:
        number = float(entry.value if isinstance(entry, Value) else entry_text(entry).replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


WIDTH, HEIGHT = 560, 350  # units of the SVG, which are Matplotlib's points
LEFT, RIGHT, TOP, BOTTOM = 58, 546, 34, 302  # the frame of the axes
HEATMAP_RIGHT, COLORBAR_LEFT = 462, 484
SWATCH = (28, 16)  # size of the sample in a legend
_INCH = 72
_SETTINGS = SETTINGS | {
    "figure.dpi": _INCH,
    "font.size": 12.0,
    "xtick.major.pad": 6.0,
    "lines.linewidth": 1.8,
    "lines.markersize": 7.0,
}
# Colours that follow the page's theme. Matplotlib does not write black fills; page.css sets those.
_THEME = {"#000000": "--text", "#333333": "--soft", "#555555": "--soft", "#767676": "--soft", "#ffffff": "--page"}
_KEPT = {  # attributes; fonts and the size are the page's
    *("viewBox", "d", "x", "y", "transform", "text-anchor", "image-rendering", "fill", "fill-opacity", "opacity"),
    *("stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-dashoffset", "stroke-linecap"),
    "stroke-linejoin",
}
_HREF = "{http://www.w3.org/1999/xlink}href"


class PageFigure(NamedTuple):
    """A figure as a page holds it."""

    svg: str
    series: list[
        dict[str, Any]
    ]  # what hovering shows: for each series its label and [across, down, x, y] of each point
    swatches: list[str]  # the samples in the legend, one for each series; none for a heat map


def embed(figure: Figure | Heatmap, prefix: str) -> PageFigure:
    """Returns the figure for a page; its ids begin with ``prefix``, which no other figure of the page may have."""
    import matplotlib

    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": figure.name}):
        drawing = plot(figure, (WIDTH / _INCH, HEIGHT / _INCH))
        _arrange(drawing, figure)
        curves = [] if isinstance(figure, Heatmap) else plotted_series(figure)
        for number, artists in enumerate(drawing.series):
            for artist in artists:
                artist.set_gid(f"series-{number}")
        svg = _page_svg(drawing.canvas, prefix, curves)
        swatches = [_swatch(curve, f"{prefix}-{number}") for number, curve in enumerate(curves)]
    label = f"{figure.title}. {figure.y_label} against {figure.x_label}. Arrow keys move between the values."
    svg.attrib |= {"class": "plot", "role": "img", "tabindex": "0", "aria-label": label}
    svg.append(ElementTree.Element("circle", {"class": "ring", "r": "7", "cx": "-20", "cy": "-20"}))
    values = _row_values(drawing, figure) if isinstance(figure, Heatmap) else _point_values(drawing, curves)
    return PageFigure(ElementTree.tostring(svg, encoding="unicode"), values, swatches)


def _arrange(drawing: Plot, figure: Figure | Heatmap) -> None:
    """Place everything at fixed positions, with labels above the axes, so that text can grow on a small screen."""
    from matplotlib.text import Text
    from matplotlib.transforms import IdentityTransform

    canvas, axes, _, colorbar = drawing
    canvas.set_layout_engine("none")
    canvas.patch.set_visible(False)
    right = HEATMAP_RIGHT if colorbar else RIGHT
    bottom, height = (HEIGHT - BOTTOM) / HEIGHT, (BOTTOM - TOP) / HEIGHT
    axes.set_position((LEFT / WIDTH, bottom, (right - LEFT) / WIDTH, height))
    axes.patch.set_visible(colorbar is not None)
    axes.set(xlabel="", ylabel="")
    labels = [(2, HEIGHT - 14, figure.y_label, "left"), ((LEFT + right) / 2, 6, figure.x_label, "center")]
    if isinstance(figure, Heatmap) and colorbar:
        colorbar.set_position((COLORBAR_LEFT / WIDTH, bottom, 0.1, height))  # its own aspect makes it narrower
        colorbar.set_ylabel("")
        labels.append((WIDTH - 2, HEIGHT - 14, figure.value_label, "right"))
    for x, y, text, side in labels:
        canvas.add_artist(Text(x, y, text, ha=side, va="baseline", transform=IdentityTransform()))
    for artist in canvas.findobj():
        artist.set_clip_on(False)  # nothing is drawn outside the axes


def _swatch(curve: PlottedSeries, prefix: str) -> str:
    """The sample of a series in the legend: a piece of its line with one marker."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D
    from matplotlib.transforms import IdentityTransform

    width, height = SWATCH
    canvas = Canvas(figsize=(width / _INCH, height / _INCH), dpi=_INCH)
    canvas.patch.set_visible(False)
    line = Line2D([1, width / 2, width - 1], [height / 2] * 3, markevery=[1], gid="series-0", **line_settings(curve))
    line.set_transform(IdentityTransform())
    canvas.add_artist(line)
    svg = _page_svg(canvas, prefix, [curve])
    svg.attrib |= {"class": "swatch", "aria-hidden": "true"}
    return ElementTree.tostring(svg, encoding="unicode")


def _point_values(drawing: Plot, curves: Sequence[PlottedSeries]) -> list[dict[str, Any]]:
    return [{"label": curve.label, "points": _values_of(drawing, curve)} for curve in curves]


def _values_of(drawing: Plot, curve: PlottedSeries) -> list[list[Any]]:
    texts = [number_text(value) for value in curve.y]
    if curve.error is not None:
        texts = [f"{text} ± {error:.2g}" for text, error in zip(texts, curve.error, strict=True)]
    places = _places(drawing, curve.x, curve.y)
    return [[*place, number_text(x), text] for place, x, text in zip(places, curve.x, texts, strict=True)]


def _row_values(drawing: Plot, figure: Heatmap) -> list[dict[str, Any]]:
    """The values of a heat map, in which each row is a series, so that the arrow keys reach all of it."""
    series = []
    for y, row in zip(figure.y, heatmap_values(figure)[0], strict=True):
        texts = [number_text(value) if np.isfinite(value) else "none" for value in row]
        places = _places(drawing, np.asarray(figure.x, dtype=np.float64), np.full(len(figure.x), y))
        points = [[*place, number_text(x), text] for place, x, text in zip(places, figure.x, texts, strict=True)]
        series.append({"label": f"{figure.y_label} {number_text(y)}", "points": points})
    return series


def _places(drawing: Plot, x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Where the axes put these points, in units of the SVG, from its upper left corner."""
    across, up = drawing.axes.transData.transform(np.stack([x, y], axis=1)).T
    return [(round(a, 1), round(HEIGHT - b, 1)) for a, b in zip(across.tolist(), up.tolist(), strict=True)]


def _page_svg(canvas: Any, prefix: str, curves: Sequence[PlottedSeries]) -> ElementTree.Element:
    """The canvas as an SVG element for a page; a group with the id ``series-N`` belongs to that curve."""
    out = io.StringIO()
    canvas.savefig(out, format="svg", dpi=2 * _INCH, metadata={"Date": None, "Creator": None})

    def converted(element: ElementTree.Element, theme: Mapping[str, str]) -> ElementTree.Element:
        name = _local_name(element.tag)
        attributes = _attributes(element, prefix, theme)
        if element.get("id", "").startswith("series-"):
            number = int(element.attrib["id"].removeprefix("series-"))
            attributes |= {"class": f"series {curves[number].css_class}", "data-series": str(number)}
            theme = {**theme, curves[number].style.colour.lower(): "--c"}
        elif name == "use" and "--c" in theme.values():
            attributes["class"] = "marker"
        result = ElementTree.Element(name, attributes)
        result.text = element.text if name == "text" else None
        # A style element would apply to the whole page; page.css has the rules of Matplotlib's.
        result.extend(
            converted(child, theme) for child in element if _local_name(child.tag) not in ("metadata", "style")
        )
        return result

    return converted(ElementTree.fromstring(shortened(out.getvalue())), _THEME)


def _attributes(element: ElementTree.Element, prefix: str, theme: Mapping[str, str]) -> dict[str, str]:
    """Attributes in place of inline style, with ids only where they are referred to, each with the prefix."""
    given = dict(element.attrib)
    style = (part.split(":") for part in given.pop("style", "").split(";") if part.strip())
    given |= {name.strip(): value.strip() for name, value in style}
    kept = {name: value for name, value in given.items() if name in _KEPT}
    kept |= {name: f"var({theme[kept[name]]})" for name in ("fill", "stroke") if kept.get(name) in theme}
    if "d" in kept:
        kept["d"] = " ".join(kept["d"].split())
    if kept.get("transform", "").startswith("rotate(-0 "):
        del kept["transform"]
    name = _local_name(element.tag)
    if name == "path" and "id" in given:
        kept["id"] = f"{prefix}-{given['id']}"
    elif name == "use":
        kept["href"] = f"#{prefix}-{given[_HREF].removeprefix('#')}"
    elif name == "image":
        kept |= {"href": given[_HREF], "width": given["width"], "height": given["height"]}
    return kept


def _local_name(name: str) -> str:
    """The name without its namespace, which HTML does not need."""
    return name.rpartition("}")[2]
