"""What a report says, before it is text, picture or page: sections of sentences, tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Value:
    """A number of a table: mean and standard error over seeds, to so many digits.

    ``unit`` is printed right after it: give "×", or " s" with its space.
    """

    value: float
    error: float | None = None
    digits: int = 2
    unit: str = ""


Entry = str | Value | None  # None: there is no such number


@dataclass(frozen=True)
class Table:
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
    """One line or one set of points. ``style`` is a method's name, "paper", or a number that picks a colour."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None  # of y, one standard error
    style: str | int = 0
    line: bool = True  # join the points

    def __post_init__(self) -> None:
        lengths = {"x": len(self.x), "y": len(self.y)} | ({} if self.error is None else {"error": len(self.error)})
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{length} of {name}" for name, length in lengths.items())
            raise ValueError(f"series {self.label!r} has {counts}; give as many of each.")


@dataclass(frozen=True)
class Figure:
    """``name`` is the stem of its files."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Heatmap:
    """``values[i][j]`` at ``y[i]``, ``x[j]``; both rise. Colours are spread over log(values) if ``log``."""

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
            found = f"{len(self.values)} rows of {widths} values for {len(self.y)} y and {len(self.x)} x"
            raise ValueError(f"heatmap {self.name!r} has {found}; give one row a y, and one value an x.")


@dataclass(frozen=True)
class Section:
    """One experiment: what was asked, what came out, and on what it rests."""

    name: str
    title: str
    question: str
    answers: Sequence[str]  # plain sentences
    tables: Sequence[Table] = ()
    figures: Sequence[Figure | Heatmap] = ()
    notes: Sequence[str] = ()  # the regime, the rule of significance, what differs from the paper
    source: dict[str, Any] = field(default_factory=dict)  # scale, seeds, commit, versions
