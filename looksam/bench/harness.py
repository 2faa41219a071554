"""Interleaved timing: every subject takes its turn in every round, and ratios are taken within a round.

A machine that slows down thus slows down all subjects alike. A turn is many steps, whole cycles of a rule's period, as
the first step after another subject's turn is slow. Several base subjects may share the denominator: the noise of a
single one would be in every ratio. This module imports no framework.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Report = Callable[[str], None]
QUARTERS = 4


class Turn(NamedTuple):
    """The time per step of one turn, in seconds."""

    wall: float
    cpu: float  # of all threads of the process


class Subject(Protocol):
    """Something whose steps can be timed."""

    def run(self, steps: int) -> Any:
        """Takes so many steps, and returns when their results are there."""

    def facts(self) -> dict[str, float]:
        """What is reported besides time, such as the number of gradients per step."""


def clocked(run: Callable[[int], Any], steps: int) -> Turn:
    """Takes the steps of one turn, and returns the time that each of them took."""
    wall, cpu = time.perf_counter(), time.process_time()
    run(steps)
    return Turn((time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps)


def whole_cycles(period: int, at_least: int) -> int:
    """Returns the smallest multiple of the period that is at least this many steps.

    >>> whole_cycles(5, 10), whole_cycles(7, 20)
    (10, 21)
    """
    return -(-at_least // period) * period


@dataclass(frozen=True)
class Timings:
    """The turns of all subjects, by name, then in the order of the rounds."""

    turns: Mapping[str, Sequence[Turn]]

    def ratios(self, name: str, bases: Sequence[str]) -> dict[str, list[float]]:
        """The quartiles over rounds of a subject's ``wall`` and ``cpu`` time, relative to the mean of the bases."""
        return {clock: quartiles(self._ratios(name, bases, clock)) for clock in Turn._fields}

    def milliseconds(self, name: str) -> float:
        """The median wall time per step."""
        return 1e3 * statistics.median(turn.wall for turn in self.turns[name])

    def _ratios(self, name: str, bases: Sequence[str], clock: str) -> list[float]:
        by_round = zip(self.turns[name], *(self.turns[base] for base in bases), strict=True)
        times = [[getattr(turn, clock) for turn in turns] for turns in by_round]
        return [own / statistics.mean(base) for own, *base in times]


def quartiles(values: Sequence[float]) -> list[float]:
    """Returns the quartiles, the median in the middle; a single value is all three."""
    if len(values) == 1:
        return [values[0]] * (QUARTERS - 1)
    return statistics.quantiles(values, n=QUARTERS, method="inclusive")


def interleave(turns: Mapping[str, Callable[[], Turn]], rounds: int, report: Report = lambda line: None) -> Timings:
    """Lets every subject take one turn per round, in an order that is shuffled anew each time.

    One more round goes first, to warm up, and is not counted.

    Args:
      turns: by name, the function that takes one turn of a subject.
      rounds: the number of rounds.
      report: receives one line per round.

    Example:
      >>> from looksam.bench.harness import Turn, interleave
      >>> timings = interleave({"base": lambda: Turn(2.0, 1.0), "sam": lambda: Turn(4.0, 3.0)}, rounds=5)
      >>> timings.ratios("sam", bases=["base"])
      {'wall': [2.0, 2.0, 2.0], 'cpu': [3.0, 3.0, 3.0]}
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} is out of range; pass rounds >= 1.")
    taken: dict[str, list[Turn]] = {name: [] for name in turns}
    order, shuffle = list(turns), random.Random(0)
    for i in range(rounds + 1):
        shuffle.shuffle(order)
        for name in order:
            turn = turns[name]()
            if i > 0:
                taken[name].append(turn)
        report(f"timing: round {i}/{rounds}" if i else "timing: warmed up")
    return Timings(taken)


def joined(parts: Sequence[Timings]) -> Timings:
    """The rounds of several measurements of the same subjects, as if they were one."""
    names = parts[0].turns
    return Timings({name: [turn for part in parts for turn in part.turns[name]] for name in names})
