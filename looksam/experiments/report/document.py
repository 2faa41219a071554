"""The content of a report, before it is text, figures or a page: sections of sentences, tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class Value:
    """A number in a table: mean and standard error over seeds, rounded to ``digits`` decimals.

    ``unit`` is printed right after it: give "×", or " s" with its space.
    """

    value: float
    error: float | None = None
    digits: int = 2
    unit: str = ""


@dataclass(frozen=True)
class Link:
    """An entry of a table that leads to another section of the document, by its name and its title."""

    text: str
    section: str
    title: str


Entry = str | Value | Link | None  # None: there is no such number


Verdict = Literal["holds", "does not hold", "not tested here"]


class Claim(NamedTuple):
    """A claim of the paper, and whether it holds in what was measured."""

    text: str
    verdict: Verdict
    evidence: str  # the numbers, in a few words


@dataclass(frozen=True)
class Table:
    """A table with a title; every row has one entry per column, and the first one names the row."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Entry, ...]]

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                entries = f"row {number} has {len(row)} entries for {len(self.columns)} columns"
                raise ValueError(f"table {self.title!r}: {entries}; use None where there is no number.")


@dataclass(frozen=True)
class Series:
    """One line or one set of points. ``style`` is a method's name, "paper", or a number that selects a colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None  # of y, one standard error
    style: str | int = 0
    line: bool = True  # whether the points are joined

    def __post_init__(self) -> None:
        lengths = {"x": len(self.x), "y": len(self.y)} | ({} if self.error is None else {"error": len(self.error)})
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{length} of {name}" for name, length in lengths.items())
            raise ValueError(f"series {self.label!r} has {counts}; give as many of each.")


@dataclass(frozen=True)
class Figure:
    """Series in one pair of axes; ``name`` is the stem of its files."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Heatmap:
    """Values on a grid: ``values[i][j]`` at ``y[i]``, ``x[j]``, both increasing.

    The colours are spread evenly over the values, or over their logarithms if ``log``.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]
    value_label: str = ""
    log: bool = False

    def __post_init__(self) -> None:
        widths = sorted({len(row) for row in self.values})
        if len(self.values) != len(self.y) or widths not in ([], [len(self.x)]):
            shape = f"{len(self.values)} rows of {widths} values for {len(self.y)} y and {len(self.x)} x"
            raise ValueError(f"heatmap {self.name!r} has {shape}; give one row per y and one value per x.")


@dataclass(frozen=True)
class Section:
    """One experiment: its question, the answers, and what they are based on."""

    name: str
    title: str
    question: str
    answers: Sequence[str]  # plain sentences
    tables: Sequence[Table] = ()
    figures: Sequence[Figure | Heatmap] = ()
    notes: Sequence[str] = ()  # the setting, how significance is tested, what differs from the paper
    source: dict[str, Any] = field(default_factory=dict)  # scale, seeds, commit, versions
    claims: Sequence[Claim] = ()  # of the paper, for the summary of all sections
    headline: Sequence[str] = ()  # sentences for that summary
