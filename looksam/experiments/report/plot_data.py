"""What a figure plots: the style of each series, the points that its axes can show, and the axes with their ticks.

Nothing here depends on Matplotlib. The tick positions are our own, not Matplotlib's: they are a function of the data
alone, so that a figure does not change with its size or with the version of the library.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from looksam.experiments.report.document import Figure, Heatmap, Series
from looksam.methods import BLACK, BLUE, GREEN, GREY, METHODS, ORANGE, PURPLE, SKY, VERMILION

MAX_POINTS = 1800  # in one figure, the ends of error bars included: keeps the files small
MIN_POINTS = 40  # that each series may have all the same
MAX_MARKERS = 40  # points of a series up to which each one has a marker
MAX_ERROR_BARS = 12  # points of a line up to which errors are bars; beyond that they are a band
_PADDING = 0.05  # of the span, on both sides of an axis


class Style(NamedTuple):
    """The appearance of a series: ``dark`` is its colour on a dark page, ``marker`` is Matplotlib's letter."""

    colour: str
    dark: str
    marker: str
    dashed: bool = False
    hollow: bool = False


PAPER = Style(*GREY, "o", dashed=True, hollow=True)  # the numbers that the paper reports
STYLES = {name: Style(*method.colour, method.marker) for name, method in METHODS.items()} | {"paper": PAPER}
# Seven colours and nine markers: no two of the first 63 numbers look alike. Every second round of colours is dashed.
_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


def style(name: str | int) -> Style:
    """The style of a method, of the paper's numbers, or of a series that has only a number, from 0.

    >>> style("sam").colour
    '#D55E00'
    >>> style(7).dashed
    True
    """
    if isinstance(name, int):
        if name < 0:
            raise ValueError(f"style {name} is negative: use a number from 0.")
        turn, place = divmod(name, len(_COLOURS))
        return Style(*_COLOURS[place], _MARKERS[name % len(_MARKERS)], dashed=turn % 2 == 1)
    if name not in STYLES:
        raise ValueError(f"style {name!r} is not known: use a number from 0, or one of {', '.join(STYLES)}.")
    return STYLES[name]


class PlottedSeries(NamedTuple):
    """A series with only the points that are plotted."""

    label: str
    css_class: str  # "style-sam", "style-0"
    style: Style
    line: bool
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper end of each error bar; y itself where there are no errors."""
        error = 0.0 if self.error is None else self.error
        return self.y - error, self.y + error

    @property
    def has_markers(self) -> bool:
        return not self.line or len(self.x) <= MAX_MARKERS

    @property
    def has_band(self) -> bool:
        return self.error is not None and self.line and len(self.x) > MAX_ERROR_BARS


def plotted_series(figure: Figure) -> list[PlottedSeries]:
    """Each series without the values that no axis can show: not finite, or not positive on a logarithmic axis."""
    weight = sum(1 if series.error is None else 3 for series in figure.series)
    most = max(MIN_POINTS, MAX_POINTS // max(1, weight))
    return [_plotted(series, figure, most) for series in figure.series]


def _plotted(series: Series, figure: Figure, most: int) -> PlottedSeries:
    x, y = (np.asarray(values, dtype=np.float64) for values in (series.x, series.y))
    valid = np.isfinite(x) & np.isfinite(y)
    valid &= (x > 0) if figure.log_x else True
    valid &= (y > 0) if figure.log_y else True
    kept = np.flatnonzero(valid)
    kept = kept[_thinned(y[kept], most)]
    error = None if series.error is None else np.nan_to_num(np.asarray(series.error, dtype=np.float64)[kept], posinf=0)
    css_class = f"style-{series.style}"
    return PlottedSeries(series.label, css_class, style(series.style), series.line, x[kept], y[kept], error)


def _thinned(y: np.ndarray, most: int) -> np.ndarray:
    """Indices of about ``most`` values or fewer. The lowest and the highest of each stretch stay: no peak is lost."""
    if len(y) <= most:
        return np.arange(len(y))
    stretches = np.array_split(np.arange(len(y)), math.ceil(most / 2))
    ends = [index for part in stretches for index in (part[np.argmin(y[part])], part[np.argmax(y[part])])]
    return np.unique([0, *ends, len(y) - 1])


class Axis(NamedTuple):
    """The limits of an axis, its scale, and its ticks with their labels."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]
    labels: tuple[str, ...]


def line_axes(figure: Figure, curves: Sequence[PlottedSeries]) -> tuple[Axis, Axis]:
    """The x-axis and the y-axis that hold all points and the ends of all error bars."""
    x = fit_axis(
        (x for curve in curves for x in curve.x), figure.log_x, tick_values=any(curve.line for curve in curves)
    )
    return x, fit_axis(y_values(curves, figure.log_y), figure.log_y)


def y_values(curves: Sequence[PlottedSeries], log: bool) -> list[float]:
    """Every y that the axis must hold, the ends of the error bars included where they can be shown."""
    parts = [part for curve in curves for low, high in [curve.ends] for part in (low, curve.y, high)]
    return [float(y) for part in parts for y in part if y > 0 or not log]


def heatmap_values(figure: Heatmap) -> tuple[np.ndarray, Axis]:
    """The values, NaN where there is none to show, and the axis of their colours."""
    values = np.array(figure.values, dtype=np.float64)
    valid = np.isfinite(values) & ((values > 0) | (not figure.log))
    return np.where(valid, values, np.nan), fit_axis(values[valid], figure.log, padding=0)


def fit_axis(values: Iterable[float], log: bool = False, padding: float = _PADDING, tick_values: bool = False) -> Axis:
    """An axis for these values, all finite, and all positive if ``log``.

    With ``tick_values`` the ticks are the values themselves, if they are few and far enough apart.
    """
    data = np.unique(np.fromiter(values, dtype=np.float64))
    low, high = _limits(data, log, padding)
    ticks = _ticks_at(data, low, high, log) if tick_values else ()
    ticks = ticks or (_log_ticks(low, high) if log else _even_ticks(low, high))
    return Axis(low, high, log, ticks, tick_labels(ticks))


def _scaled(values: np.ndarray, log: bool) -> np.ndarray:
    return np.log10(values) if log else np.asarray(values)


def _limits(data: np.ndarray, log: bool, padding: float) -> tuple[float, float]:
    if not len(data):
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = (float(end) for end in _scaled(data[[0, -1]], log))
    room = padding * (high - low) or (0.0 if high > low else abs(high) * _PADDING or 0.5)
    return (10 ** (low - room), 10 ** (high + room)) if log else (low - room, high + room)


def _ticks_at(data: np.ndarray, low: float, high: float, log: bool) -> tuple[float, ...]:
    """The values themselves, if there are two to eight and their labels have room."""
    places = _scaled(data, log)
    low, high = (float(end) for end in _scaled(np.array([low, high]), log))
    apart = 2 <= len(data) <= 8 and np.min(np.diff(places)) >= 0.07 * (high - low)
    short = all(len(number_text(value)) <= 6 for value in data)
    return tuple(map(float, data)) if apart and short else ()


def _even_ticks(low: float, high: float) -> tuple[float, ...]:
    """Four to seven round numbers."""
    rough = (high - low) / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = unit * min((1, 2, 5, 10), key=lambda factor: abs(math.log(factor * unit / rough)))
    digits = max(0, 2 - math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(number * step, digits) + 0.0 for number in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten; 1, 2 and 5 times them where there are few; even ticks within less than a decade."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    decades = range(first, last + 1)
    if len(decades) >= 3:
        return tuple(10.0**power for power in decades[:: math.ceil(len(decades) / 6)])
    ticks = [factor * 10.0**power for power in range(first - 1, last + 2) for factor in (1, 2, 5)]
    inside = tuple(tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9))
    return inside if len(inside) >= 3 else _even_ticks(low, high)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def tick_labels(ticks: tuple[float, ...]) -> tuple[str, ...]:
    """Plain numbers; powers of ten where they would be long.

    >>> tick_labels((0.0, 0.5, 1.0)), tick_labels((1e-5, 1.0)), tick_labels((4096.0, 32768.0))
    (('0.0', '0.5', '1.0'), ('10⁻⁵', '1'), ('4,096', '32,768'))
    """
    sizes = [abs(tick) for tick in ticks if tick] or [1.0]
    apart, long = max(sizes) / min(sizes) > 50, min(sizes) < 1e-4 or max(sizes) >= 1e6
    if apart:
        return tuple(_power_text(tick) if long else number_text(tick) for tick in ticks)
    exponent = math.floor(math.log10(max(sizes))) if long else 0
    factors = [tick / 10**exponent for tick in ticks]
    digits = next((d for d in range(6) if all(math.isclose(f, round(f, d), abs_tol=1e-9) for f in factors)), 6)
    texts = (f"{factor:z,.{digits}f}".replace("-", "−") for factor in factors)
    power = f"·{_ten_to(exponent)}" if long else ""
    return tuple(text + power if tick or not long else "0" for tick, text in zip(ticks, texts, strict=True))


def number_text(number: float) -> str:
    """A number with up to five significant digits, for ticks and for the values that hovering shows."""
    text = f"{number:,.0f}" if 1e4 <= abs(number) < 1e6 else f"{number:.5g}"
    if float(text.replace(",", "")) == number and number == int(number) and abs(number) < 1e6:
        text = f"{int(number):,}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "−")


def _power_text(tick: float) -> str:
    """The label of a tick on an axis of many decades, e.g. 10⁻⁵ or 2·10⁻⁵."""
    if tick == 0 or (1e-3 <= abs(tick) <= 1e3):
        return number_text(tick)
    mantissa, exponent = f"{tick:.6e}".split("e")
    factor = number_text(float(mantissa))
    return _ten_to(int(exponent)) if factor == "1" else f"{factor}·{_ten_to(int(exponent))}"


def _ten_to(exponent: int) -> str:
    return "10" + str(exponent).translate(_SUPERSCRIPTS)
