"""A report as plain text: for the terminal, for Markdown documents and for spreadsheets.

Tables are aligned by hand and not by Rich: README and docs hold this text character for character, and tests compare
them, whatever the width of the terminal.
"""

import csv
import io
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from looksam.experiments.report.document import Entry, Link, Section, Table, Value

NOTHING = "–"
LINE_WIDTH = 100  # of sentences in the terminal


def entry_text(entry: Entry) -> str:
    """The text of an entry.

    >>> entry_text(Value(97.351, 0.058))
    '97.35 ± 0.06'
    >>> entry_text(Value(1.273, unit="×"))
    '1.27×'
    >>> entry_text(None)
    '–'
    """
    if isinstance(entry, Link):
        return entry.text
    if not isinstance(entry, Value):
        return NOTHING if entry is None else entry
    number = f"{entry.value:z.{entry.digits}f}"  # z: no minus before a zero
    error = "" if entry.error is None else f" ± {entry.error:.{entry.digits}f}"
    return f"{number}{error}{entry.unit}"


def gradients_text(gradients: float) -> str:
    """Gradients per step: two digits where one is not enough.

    >>> gradients_text(2), gradients_text(1.2), gradients_text(1.04)
    ('2.0', '1.2', '1.04')
    """
    return f"{gradients:.2f}".removesuffix("0")


def lines_text(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Lines of aligned columns: those in ``left`` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join(map(line, lines))


def lines_markdown(lines: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """A table in Markdown, whose header is the first of the lines."""
    header, *rows = ["| " + " | ".join(_markdown_cell(cell) for cell in line) + " |" for line in lines]
    rule = "".join("|---" if i in left else "|---:" for i in range(len(lines[0]))) + "|"
    return "\n".join([header, rule, *rows])


def table_text(table: Table) -> str:
    """The table for the terminal, with its title."""
    return f"{table.title}\n\n{lines_text(cells(table), left_columns(table))}"


def table_markdown(table: Table) -> str:
    """The table for a Markdown document, with its title."""
    rows = [[_linked(entry) for entry in row] for row in table.rows]
    return f"**{table.title}**\n\n{lines_markdown([table.columns, *rows], left_columns(table))}"


def table_csv(table: Table) -> str:
    """The table as CSV: numbers in full, standard errors in columns of their own, nothing where there is no number."""
    columns = [_csv_column(name, [row[i] for row in table.rows]) for i, name in enumerate(table.columns)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(zip(*(part for column in columns for part in column), strict=True))
    return out.getvalue()


def section_markdown(section: Section, figure_suffix: str = ".svg") -> str:
    """The section as part of a Markdown document, with links to the files of its figures, in the same folder."""
    images = [f"![{_bracketed(figure.title)}]({figure.name}{figure_suffix})" for figure in section.figures]
    parts = [
        f"## {section.title}",
        section.question,
        _bullets(section.answers),
        *map(table_markdown, section.tables),
        *images,
        _bullets(section.notes),
        f"<sub>{source_text(section.source)}</sub>" if section.source else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def section_text(section: Section) -> str:
    """The section for the terminal: title, answers and tables."""
    wrap = [textwrap.fill(answer, LINE_WIDTH, break_on_hyphens=False) for answer in section.answers]
    parts = [f"{section.title}\n{'=' * len(section.title)}", "\n".join(wrap), *map(table_text, section.tables)]
    return "\n\n".join(part for part in parts if part)


def source_text(source: Mapping[str, Any]) -> str:
    """What a section is based on, in one line.

    >>> source_text({"scale": "small", "seeds": 5, "versions": {"jax": "0.10.2", "optax": "0.2.8"}})
    'scale: small · seeds: 5 · versions: jax 0.10.2, optax 0.2.8'
    """
    return " · ".join(f"{name}: {_source_value(value)}" for name, value in source.items())


def cells(table: Table) -> list[tuple[str, ...]]:
    """The header and the rows, as printed."""
    return [table.columns, *(tuple(map(entry_text, row)) for row in table.rows)]


def left_columns(table: Table) -> set[int]:
    """The columns that are aligned to the left: the first one, and those of words."""
    return {i for i in range(len(table.columns)) if i == 0 or _words([row[i] for row in table.rows])}


def _words(column: Sequence[Entry]) -> bool:
    return any(isinstance(entry, str | Link) and any(map(str.isalpha, entry_text(entry))) for entry in column)


def _linked(entry: Entry) -> str:
    return f"[{entry.text}](#{address(entry.title)})" if isinstance(entry, Link) else entry_text(entry)


def address(title: str) -> str:
    """The address that Markdown gives to the section of this title.

    >>> address("Accuracy on CIFAR-100, at 16²")
    'accuracy-on-cifar-100-at-16²'
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _csv_column(name: str, column: Sequence[Entry]) -> list[list[Any]]:
    """One column, or two where there are standard errors, each with its title on top."""
    values = [entry for entry in column if isinstance(entry, Value)]
    units = {value.unit.strip() for value in values} - {""}
    title = f"{name} [{units.pop()}]" if len(units) == 1 else name
    parts = [[title, *(float(e.value) if isinstance(e, Value) else e and entry_text(e) for e in column)]]
    if any(value.error is not None for value in values):
        errors = [float(e.error) if isinstance(e, Value) and e.error is not None else None for e in column]
        parts.append([f"{name}, standard error", *errors])
    return parts


def _source_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _markdown_cell(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _bracketed(text: str) -> str:
    return text.replace("[", "\\[").replace("]", "\\]")
