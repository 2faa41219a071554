"""The points of a figure that can be drawn, and no more of them than a reader can see."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from looksam.experiments.report.axes import Axis, axis
from looksam.experiments.report.section import Figure, Heatmap, Series
from looksam.experiments.report.style import Style, style

MOST = 1800  # points of one figure, ends of errors counted: keeps the files small
FEWEST = 40  # points that each series may have all the same
MARKED = 40  # points of a series up to which each gets a marker
BARRED = 12  # points of a line up to which errors are bars; beyond, a band


class Points(NamedTuple):
    """A series, cleaned. ``name`` is the style's: "style-sam", "style-0"."""

    label: str
    name: str
    style: Style
    line: bool
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None

    @property
    def errors(self) -> np.ndarray:
        return np.zeros(len(self.y)) if self.error is None else self.error

    @property
    def marked(self) -> bool:
        return not self.line or len(self.x) <= MARKED

    @property
    def band(self) -> bool:
        return self.error is not None and self.line and len(self.x) > BARRED


def drawn(figure: Figure) -> list[Points]:
    """Each series without what no axis can show: not finite, or not positive where the axis is logarithmic."""
    weight = sum(1 if series.error is None else 3 for series in figure.series)
    most = max(FEWEST, MOST // max(1, weight))
    return [_drawn(series, figure, most) for series in figure.series]


def heights(lines: Sequence[Points], log: bool) -> list[float]:
    """Every y that a picture must hold, ends of the errors included."""
    ends = [points.y + sign * points.errors for points in lines for sign in (-1, 0, 1)]
    return [float(y) for part in ends for y in part if y > 0 or not log]


def shades(figure: Heatmap) -> tuple[np.ndarray, Axis]:
    """The values, NaN where there is none to show, and the axis of their colours."""
    values = np.array(figure.values, dtype=np.float64)
    shown = np.isfinite(values) & ((values > 0) | (not figure.log))
    return np.where(shown, values, np.nan), axis(values[shown], figure.log, pad=0)


def _drawn(series: Series, figure: Figure, most: int) -> Points:
    x, y = (np.asarray(values, dtype=np.float64) for values in (series.x, series.y))
    shown = np.isfinite(x) & np.isfinite(y)
    shown &= (x > 0) if figure.log_x else True
    shown &= (y > 0) if figure.log_y else True
    kept = np.flatnonzero(shown)
    kept = kept[_thinned(y[kept], most)]
    error = None if series.error is None else np.nan_to_num(np.asarray(series.error, dtype=np.float64)[kept], posinf=0)
    return Points(series.label, f"style-{series.style}", style(series.style), series.line, x[kept], y[kept], error)


def _thinned(y: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most about ``most`` values. The lowest and the highest of each stretch stay: no peak is lost."""
    if len(y) <= most:
        return np.arange(len(y))
    stretches = np.array_split(np.arange(len(y)), math.ceil(most / 2))
    ends = [index for part in stretches for index in (part[np.argmin(y[part])], part[np.argmax(y[part])])]
    return np.unique([0, *ends, len(y) - 1])
