"""Where the ticks of an axis stand and what they say, the same in every picture."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PAD = 0.05  # of the span, on both sides


class Axis(NamedTuple):
    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]
    labels: tuple[str, ...]

    def place(self, values: np.ndarray) -> np.ndarray:
        """0 at the low end, 1 at the high end; what lies outside is moved to the end."""
        low, high = _scaled(np.array([self.low, self.high]), self.log)
        inside = np.clip(values, self.low, self.high)
        return (_scaled(inside, self.log) - low) / (high - low)


def axis(values: Iterable[float], log: bool = False, pad: float = _PAD, stops: bool = False) -> Axis:
    """An axis for these values, all finite, and all positive if ``log``. ``stops``: tick the values if they are few."""
    data = np.unique(np.fromiter(values, dtype=np.float64))
    low, high = _ends(data, log, pad)
    ticks = _stops(data, low, high, log) if stops else ()
    ticks = ticks or (_log_ticks(low, high) if log else _even_ticks(low, high))
    return Axis(low, high, log, ticks, tick_labels(ticks))


def tick_labels(ticks: tuple[float, ...]) -> tuple[str, ...]:
    """Plain numbers; powers of ten where they would be long.

    >>> tick_labels((0.0, 0.5, 1.0)), tick_labels((1e-5, 1.0)), tick_labels((4096.0, 32768.0))
    (('0.0', '0.5', '1.0'), ('10⁻⁵', '1'), ('4,096', '32,768'))
    """
    sizes = [abs(tick) for tick in ticks if tick] or [1.0]
    apart, long = max(sizes) / min(sizes) > 50, min(sizes) < 1e-4 or max(sizes) >= 1e6
    if apart:
        return tuple(_power(tick) if long else number_text(tick) for tick in ticks)
    exponent = math.floor(math.log10(max(sizes))) if long else 0
    factors = [tick / 10**exponent for tick in ticks]
    digits = next((d for d in range(6) if all(math.isclose(f, round(f, d), abs_tol=1e-9) for f in factors)), 6)
    texts = (f"{factor:z,.{digits}f}".replace("-", "−") for factor in factors)
    power = f"·{_ten(exponent)}" if long else ""
    return tuple(text + power if tick or not long else "0" for tick, text in zip(ticks, texts, strict=True))


def number_text(number: float) -> str:
    """Up to five digits that count, for ticks and for what hovering says."""
    text = f"{number:,.0f}" if 1e4 <= abs(number) < 1e6 else f"{number:.5g}"
    if float(text.replace(",", "")) == number and number == int(number) and abs(number) < 1e6:
        text = f"{int(number):,}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "−")


def _scaled(values: np.ndarray, log: bool) -> np.ndarray:
    return np.log10(values) if log else np.asarray(values)


def _ends(data: np.ndarray, log: bool, pad: float) -> tuple[float, float]:
    if not len(data):
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = (float(end) for end in _scaled(data[[0, -1]], log))
    room = pad * (high - low) or (0.0 if high > low else abs(high) * _PAD or 0.5)
    return (10 ** (low - room), 10 ** (high + room)) if log else (low - room, high + room)


def _stops(data: np.ndarray, low: float, high: float, log: bool) -> tuple[float, ...]:
    """The values themselves, if there are two to eight and their labels have room."""
    places = _scaled(data, log)
    low, high = (float(end) for end in _scaled(np.array([low, high]), log))
    roomy = 2 <= len(data) <= 8 and np.min(np.diff(places)) >= 0.07 * (high - low)
    short = all(len(number_text(value)) <= 6 for value in data)
    return tuple(map(float, data)) if roomy and short else ()


def _even_ticks(low: float, high: float) -> tuple[float, ...]:
    """Four to seven round numbers."""
    rough = (high - low) / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = unit * min((1, 2, 5, 10), key=lambda factor: abs(math.log(factor * unit / rough)))
    digits = max(0, 2 - math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(number * step, digits) + 0.0 for number in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    decades = range(first, last + 1)
    if len(decades) >= 3:
        return tuple(10.0**power for power in decades[:: math.ceil(len(decades) / 6)])
    ticks = [factor * 10.0**power for power in range(first - 1, last + 2) for factor in (1, 2, 5)]
    inside = tuple(tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9))
    return inside if len(inside) >= 3 else _even_ticks(low, high)


def _power(tick: float) -> str:
    """Of an axis of many decades: 10⁻⁵, or 2·10⁻⁵."""
    if tick == 0 or (1e-3 <= abs(tick) <= 1e3):
        return number_text(tick)
    mantissa, exponent = f"{tick:.6e}".split("e")
    factor = number_text(float(mantissa))
    return _ten(int(exponent)) if factor == "1" else f"{factor}·{_ten(int(exponent))}"


def _ten(exponent: int) -> str:
    return "10" + str(exponent).translate(_SUPERSCRIPTS)
