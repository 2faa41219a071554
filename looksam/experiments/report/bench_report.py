"""The table and the picture of what a step costs, from the numbers of ``looksam.bench.measure``."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from looksam.bench.measure import VERSION
from looksam.bench.subjects import FORMS
from looksam.experiments.report.figures import SETTINGS, shortened
from looksam.experiments.report.plot_data import style
from looksam.experiments.report.text import NOTHING, gradients_text, lines_markdown, lines_text
from looksam.methods import OPTIMIZERS, parse_row
from looksam.trainer.run_folder.run_directory import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADER = (
    *("method", "by", "gradients per step", "relative step time", "middle half", "relative CPU time"),
    *("ms per step", "images/s", "kept", "temporaries"),
)
LEFT = (0, 1)
ROW_HEIGHT, PANEL_MARGIN, WIDTH = 0.27, 0.95, 7.4  # of the picture, in inches


def title(result: Mapping[str, Any]) -> str:
    """The recipe's name, optimizer and batch size."""
    return f"{_model(result)}, batch size {result['recipe']['batch_size']}"


def _model(result: Mapping[str, Any]) -> str:
    return f"{result['name']}, {OPTIMIZERS[result['recipe']['optimizer']]}"


def as_text(result: Mapping[str, Any]) -> str:
    """The table for the terminal, with where and how it was measured."""
    return f"{title(result)}\n\n{lines_text([HEADER, *_lines(result)], LEFT)}\n\n{source(result)}"


def as_markdown(result: Mapping[str, Any]) -> str:
    """The same table in Markdown, with its title and without its source."""
    return f"**{title(result)}**\n\n{lines_markdown([HEADER, *_lines(result)], LEFT)}"


def medians_markdown(results: Sequence[Mapping[str, Any]], clock: str = "cpu") -> str:
    """The medians of several measurements of the same cases: one line per case, one column per measurement."""
    rows = [{row["name"]: row for row in result["rows"]} for result in results]
    names = dict.fromkeys(name for by_name in rows for name in by_name)
    lines = [("method", "by", "gradients per step", *map(_model, results))]
    for name in names:
        known = next(by_name[name] for by_name in rows if name in by_name)
        ratios = (f"{by_name[name][clock][1]:.2f}" if name in by_name else NOTHING for by_name in rows)
        lines.append((*_who(known), gradients_text(known["gradients"]), *ratios))
    return lines_markdown(lines, LEFT)


def source(result: Mapping[str, Any]) -> str:
    """Where and how it was measured, in two lines."""
    environment = result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    variables = "".join(f", {name}={value}" for name, value in environment["variables"].items())
    rounds = result["rounds"] * result["sets"]
    return (
        f"{environment['cpu']}, {environment['cores']} cores; {versions}{variables}\n"
        f"medians over {rounds} interleaved rounds; memory in copies of the parameters"
    )


def _lines(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [_line(row) for row in result["rows"]]


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    low, median, high = row["wall"]
    return (
        *_who(row),
        gradients_text(row["gradients"]),
        f"{median:.2f}×",
        f"{low:.2f}–{high:.2f}",
        f"{row['cpu'][1]:.2f}×",
        f"{row['milliseconds']:.3g}",
        f"{row['images_per_second']:,.0f}",
        *(f"{row[name]:.2f}" if name in row else NOTHING for name in ("kept_copies", "temporary_copies")),
    )


def _who(row: Mapping[str, Any]) -> tuple[str, str]:
    """The method, and by whom it is run."""
    return row["method"], ", ".join(part for part in (FORMS[row["form"]].label, row["variant"]) if part)


# --- files --------------------------------------------------------------------------------------------------------


def write(results: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Writes the results as JSON, and their picture next to it as SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())
    draw(results, path.with_suffix(".svg"))


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The results in a file that ``write`` wrote. Raises ValueError for another version of the format."""
    results: list[dict[str, Any]] = json.loads(path.read_text())
    for result in results:
        version = result.get("version", "none")
        if version != VERSION:
            raise ValueError(f"{path} has format version {version}; this looksam reads {VERSION}: measure it again.")
    return results


# --- the picture --------------------------------------------------------------------------------------------------


def draw(results: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws relative step times with their middle half, one panel per result; a tick marks the gradients per step."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [PANEL_MARGIN + ROW_HEIGHT * len(result["rows"]) for result in results]
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": path.stem}):
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(results), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, result in zip(panels, results, strict=True):
            _draw_panel(axes, result)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    if path.suffix == ".svg":
        path.write_text(shortened(path.read_text()))


def _draw_panel(axes: "Axes", result: Mapping[str, Any]) -> None:
    rows = result["rows"]
    for y, row in enumerate(rows):
        look, (low, median, high) = style(parse_row(row["row"]).method.name), row["wall"]
        face = "white" if FORMS[row["form"]].is_peer else look.colour
        axes.plot([low, high], [y, y], color=look.colour, linewidth=2.2)
        axes.plot([median], [y], color=look.colour, marker=look.marker, markerfacecolor=face)
        axes.plot([row["gradients"]], [y], color="#767676", marker="|", markersize=11)
    axes.set_yticks(range(len(rows)), [", ".join(_who(row)) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("relative step time; | marks the gradients per step")
    axes.set_title(title(result), loc="left", fontsize=10.5, fontweight="bold")
    axes.grid(axis="x", color="#000000", alpha=0.1, linewidth=0.6)
