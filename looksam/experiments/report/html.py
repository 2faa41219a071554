"""A report as one HTML file that needs nothing else: no network, no library, no font to fetch."""

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from looksam.experiments.report.points import drawn
from looksam.experiments.report.section import Entry, Figure, Heatmap, Section, Table, Value
from looksam.experiments.report.style import style
from looksam.experiments.report.svg import draw_heatmap, draw_lines, looks, swatch
from looksam.experiments.report.text import entry_text, left_columns, source_text

LONG = 28  # letters of a cell, beyond which it may break


def page(sections: Sequence[Section], title: str, intro: Sequence[str] = ()) -> str:
    """The whole file. ``intro`` says how to read it, a paragraph each. Names of sections become their addresses."""
    _check_names(sections)
    css = _asset("page.css") + _colours(sections)
    script = _asset("page.js")
    body = "\n".join(map(_section, sections))
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(css, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<button type="button" id="theme">Dark</button>
</header>
<nav aria-label="Sections">
{_contents(sections)}
</nav>
<main>
{_paragraphs(intro, "intro")}
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def _check_names(sections: Sequence[Section]) -> None:
    for name, times in Counter(section.name for section in sections).items():
        if times > 1 or not name or any(map(str.isspace, name)) or name == "theme":
            fault = f"is the name of {times} sections" if times > 1 else "is no name for a section"
            raise ValueError(f"{name!r} {fault}: give each its own, without spaces, and not 'theme'.")


def _asset(name: str) -> str:
    return resources.files("looksam.experiments.report").joinpath(name).read_text(encoding="utf-8")


def _policy(css: str, script: str) -> str:
    """Nothing is loaded from anywhere, and no script runs but ours."""
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _colours(sections: Sequence[Section]) -> str:
    figures = [figure for section in sections for figure in section.figures if isinstance(figure, Figure)]
    names = sorted({series.style for figure in figures for series in figure.series}, key=str)
    looks = [(name, style(name)) for name in names]
    return "".join(f".style-{name} {{ --c: light-dark({look.colour}, {look.dark}); }}\n" for name, look in looks)


def _contents(sections: Sequence[Section]) -> str:
    links = (f'<li><a href="#{escape(section.name)}">{escape(section.title)}</a></li>' for section in sections)
    return f"<ol>{''.join(links)}</ol>"


def _section(section: Section) -> str:
    name = escape(section.name)
    return "\n".join(
        [
            f'<section id="{name}" aria-labelledby="{name}-title">',
            f'<h2 id="{name}-title"><a href="#{name}">{escape(section.title)}</a></h2>',
            _paragraphs([section.question], "question"),
            _list(section.answers, "answers"),
            *map(_table, section.tables),
            f'<div class="figures">{"".join(map(_figure, section.figures))}</div>' if section.figures else "",
            _list(section.notes, "notes"),
            _paragraphs([source_text(section.source)] if section.source else [], "source"),
            "</section>",
        ]
    )


def _paragraphs(sentences: Iterable[str], kind: str) -> str:
    return "".join(f'<p class="{kind}">{escape(sentence)}</p>' for sentence in sentences)


def _list(sentences: Sequence[str], kind: str) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def _table(table: Table) -> str:
    left = left_columns(table)
    kinds = [_column_class(i, name, left) for i, name in enumerate(table.columns)]
    heads = "".join(
        f'<th scope="col" class="{kind}" aria-sort="none"><button type="button">{escape(name)}</button></th>'
        for name, kind in zip(table.columns, kinds, strict=True)
    )
    rows = "".join(f"<tr>{_cells(row, kinds)}</tr>\n" for row in table.rows)
    caption = escape(table.title)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _column_class(index: int, name: str, left: set[int]) -> str:
    side = "words" if index in left else "number"
    return f"{side} paper" if "paper" in name.lower() else side


def _cells(row: Sequence[Entry], kinds: Sequence[str]) -> str:
    first, *others = [_cell(entry, kind) for entry, kind in zip(row, kinds, strict=True)]
    return f'<th scope="row"{first}</th>' + "".join(f"<td{cell}</td>" for cell in others)


def _cell(entry: Entry, kind: str) -> str:
    """All but the tag."""
    text, number = entry_text(entry), _number(entry)
    value = "" if number is None else f' data-value="{number!r}"'
    shown = text.replace("-", "−") if isinstance(entry, Value) else text
    return f' class="{kind}{" long" * (len(text) > LONG)}"{value}>{escape(shown)}'


def _number(entry: Entry) -> float | None:
    """What the entry sorts by; a string that is a number is one."""
    try:
        number = float(entry.value if isinstance(entry, Value) else (entry or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _figure(figure: Figure | Heatmap) -> str:
    svg, points = draw_heatmap(figure) if isinstance(figure, Heatmap) else draw_lines(figure)
    y_label = figure.value_label if isinstance(figure, Heatmap) else figure.y_label
    data = {"x": figure.x_label, "y": y_label, "series": points}
    legend = "" if isinstance(figure, Heatmap) else _legend(figure)
    return (
        f'<figure data-name="{escape(figure.name)}"><figcaption>{escape(figure.title)}</figcaption>{legend}'
        f'<div class="frame">{svg}<div class="tip" role="status" hidden></div></div>'
        f'<script type="application/json">{_json(data)}</script></figure>\n'
    )


def _legend(figure: Figure) -> str:
    """One button a series, which hides it and shows it."""
    if len(figure.series) < 2:
        return ""
    buttons = "".join(
        f'<li><button type="button" aria-pressed="true" class="{points.name} {looks(points.style)}">'
        f"{swatch(points.style, points.line, points.marked)}{escape(points.label)}</button></li>"
        for points in drawn(figure)
    )
    return f'<ul class="legend" aria-label="Series">{buttons}</ul>'


def _json(data: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
