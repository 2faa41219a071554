"""A report as one HTML file that needs nothing else: no network, no library, no font to fetch."""

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from looksam.experiments.report.document import Entry, Figure, Heatmap, Section, Table, Value
from looksam.experiments.report.page_figures import embed
from looksam.experiments.report.plot_data import style
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
            fault = f"is the name of {times} sections" if times > 1 else "is no name for a section"
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


def _rows(table: Table) -> list[list[tuple[str, str, float | None]]]:
    """For each entry its text, its CSS classes, and the number by which it sorts."""
    kinds = [kind for _, kind in _columns(table)]
    return [[_cell(entry, kind) for entry, kind in zip(row, kinds, strict=True)] for row in table.rows]


def _cell(entry: Entry, kind: str) -> tuple[str, str, float | None]:
    text = entry_text(entry)
    shown = text.replace("-", "−") if isinstance(entry, Value) else text
    return shown, kind + " long" * (len(text) > LONG), _number(entry)


def _number(entry: Entry) -> float | None:
    """The number by which the entry sorts; a string that is a number is one."""
    try:
        number = float(entry.value if isinstance(entry, Value) else (entry or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
