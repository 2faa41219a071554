"""The search: hyper-parameters selected line by line on held-out images, until the best value is inside what was tried.

Every setting is its starting value times a power of √2. A line varies one setting and keeps the others: the values a
factor of 2 below and above the best so far are tried, and the line is extended while its last value is the best. Where
a neighbour is just as good, the value beyond it is tried too, so that the last value is never as good as the best. The
settings of a method take turns, each until its best value is inside: the base's learning rate, then its weight decay; a
rule's weight decay, then ρ and α, then the learning rate. The base trained longer searches as a rule does, without ρ.
If fewer than ``BUDGET`` settings have been tried by then, they take turns again by factors of √2, until there are so
many: every method gets about the same number. Tuning runs have a seed of their own.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from looksam.experiments.engine.runs import Run, Store
from looksam.methods import settings_of
from looksam.trainer.recipe import Recipe

BUDGET = 6  # settings, after which no line by factors of √2 begins
COARSE, FINE = 2, 1  # in powers of √2: first factors of 2, then of √2
TUNING_SEED = 100  # reported runs have seeds 0, 1, …
RATE_OF_BASE = 0.5  # where the others' learning rates start: sharpness-aware steps mostly prefer smaller ones
HOW = (  # the search in words, for reports
    "one setting after another by factors of 2, each until its best value is inside what was tried, then by factors of "
    f"√2 until about {BUDGET} settings have been tried. All of them, the base too, tune the learning rate and the "
    "weight decay, the rules also ρ, and α where they have one."
)

UNKNOWN = (None, -math.inf)  # the score of what is not trained yet, and what ``expected`` takes it for

Settings = dict[str, Any]
Point = tuple[int, ...]  # powers of √2, one per setting


class Trace(NamedTuple):
    """What a search tried."""

    points: list[Point]  # in the order in which they were asked for
    best: Point  # of those whose line is complete
    complete: bool  # False: some points have no score yet


def line_search(settings: int, score: Callable[[Point], float | None], budget: int = BUDGET) -> Trace:
    """Maximises ``score`` over the lattice of points, from the origin; ``score`` is None for what is not known yet.

    >>> line_search(1, lambda point: -abs(point[0] - 2.9))
    Trace(points=[(0,), (-2,), (2,), (4,), (1,), (3,)], best=(3,), complete=True)
    """
    best: Point = (0,) * settings
    tried = [best]
    for stride in (COARSE, FINE):
        for axis in range(settings):
            if stride == FINE and len(tried) >= budget:
                break
            while True:
                near = {by: _moved(best, axis, by) for by in (-stride, stride)}
                equal = [by for by, point in near.items() if score(point) == score(best) not in UNKNOWN]
                beyond = [_moved(best, axis, 2 * by) for by in equal]
                tried += [point for point in (*near.values(), *beyond) if point not in tried]
                scores = {point: score(point) for point in tried}
                known = {point: value for point, value in scores.items() if value is not None}
                if len(known) < len(tried):
                    return Trace(tried, best, False)
                winner = max(known, key=lambda point: known[point])  # the first of equal ones
                if winner == best:
                    break
                best = winner
    return Trace(tried, best, True)


def _moved(point: Point, axis: int, by: int) -> Point:
    return (*point[:axis], point[axis] + by, *point[axis + 1 :])


@dataclass(frozen=True)
class SearchStudy:
    """Methods on one recipe, each with a search of its own.

    All of them search the learning rate and the weight decay, the rules also ρ, and α where they have one. Rules start
    from half of the learning rate that was selected for the base, and from its weight decay. That may be too much for a
    rule, which regularises too, so it comes first: where all regularise too much together, a line over the learning
    rate would end far below. The base trained longer starts from what was selected for the base.
    """

    recipe: Recipe  # of the reported runs: what all methods share
    starts: Mapping[str, Settings]  # by row, "base" first: where each search starts
    epochs: int  # of tuning runs; those of the base trained longer have as many times more
    longer: tuple[float, ...] = ()  # times the epochs, for which the base is trained too

    def tuning(self, store: Store, row: str) -> list[Run]:
        """The tuning runs of a row that are known to be needed so far; none before the base is tuned."""
        start = self._start(store, row)
        if start is None:
            return []
        return [self._run(row, start, point) for point in self._trace(store, row, start).points]

    def expected(self, store: Store, row: str) -> list[Run]:
        """All tuning runs of a row, if none that is missing improves on the best so far: the fewest there can be."""
        if self.is_tuned(store, row):
            return self.tuning(store, row)
        start = self._start(store, row) or self._after(self.tuned(store, "base"), row)

        @functools.cache
        def score(point: Point) -> float:
            known = self._score(store, row, start, point)
            return UNKNOWN[1] if known is None else known

        return [self._run(row, start, point) for point in line_search(len(start), score).points]

    def is_tuned(self, store: Store, row: str) -> bool:
        """Whether the row's search is complete."""
        start = self._start(store, row)
        return start is not None and self._trace(store, row, start).complete

    def tried(self, store: Store, row: str) -> list[tuple[Settings, float]]:
        """The settings that have been tried, with their held-out accuracy, the selected ones first."""
        start = self._start(store, row)
        if start is None:
            return []
        trace = self._trace(store, row, start)
        points = [trace.best, *(point for point in trace.points if point != trace.best)]
        scored = [(settings_at(start, point), self._score(store, row, start, point)) for point in points]
        return [(settings, score) for settings, score in scored if score is not None]

    def tuned(self, store: Store, row: str, **changes: Any) -> Recipe:
        """The recipe of a row at its selected settings, or the best ones so far; then changed."""
        start = self._start(store, row)
        settings = (
            self.starts.get(row, {}) if start is None else settings_at(start, self._trace(store, row, start).best)
        )
        return self.shared(row, self.recipe.epochs).replace(**settings).replace(**changes)

    def reported(self, store: Store) -> dict[str, Recipe]:
        """The recipe of every row, at its selected settings or the best ones so far."""
        return {row: self.tuned(store, row) for row in self.rows()}

    def rows(self) -> list[str]:
        """The base, the base trained longer, and the rules."""
        return ["base", *self.longer_rows(), *(row for row in self.starts if row != "base")]

    def only(self, rows: Iterable[str]) -> "SearchStudy":
        """The same study with some of its rows; their tuning is the same."""
        return dataclasses.replace(self, starts={row: self.starts[row] for row in rows}, longer=())

    def longer_rows(self) -> dict[str, float]:
        """The rows of the base trained longer, with how many times the epochs they have."""
        return {f"base ×{factor:g}": factor for factor in self.longer}

    def shared(self, row: str, epochs: int) -> Recipe:
        """What all runs of a row share, with so many epochs, or as many times more as the row has."""
        longer = self.longer_rows()
        own = {} if row in longer else settings_of(row)
        return _replaced(self.recipe, round(longer.get(row, 1.0) * epochs), tuple(own.items()))

    def _start(self, store: Store, row: str) -> Settings | None:
        """Where the search of a row starts; None before the base is tuned, from whose settings the others start."""
        if row == "base":
            return dict(self.starts["base"])
        return self._after(self.tuned(store, "base"), row) if self.is_tuned(store, "base") else None

    def _after(self, base: Recipe, row: str) -> Settings:
        """Where the search of a row starts, given the base at its selected settings."""
        rate = base.learning_rate * (1.0 if row in self.longer_rows() else RATE_OF_BASE)
        return {"weight_decay": base.weight_decay, **self.starts.get(row, {}), "learning_rate": rate}

    def _trace(self, store: Store, row: str, start: Settings) -> Trace:
        key = "search", self.recipe, row, repr(start), self.epochs
        if key not in store.derived:
            trace = line_search(len(start), lambda point: self._score(store, row, start, point))
            if not trace.complete:
                return trace
            store.derived[key] = trace
        return store.derived[key]

    def _score(self, store: Store, row: str, start: Settings, point: Point) -> float | None:
        """The held-out accuracy at the end of a point's tuning run, None while it is missing."""
        record = store.get(self._run(row, start, point))
        return record["validation_accuracy"][-1] if record else None

    def _run(self, row: str, start: Settings, point: Point) -> Run:
        return _tuning_run(self.shared(row, self.epochs), tuple(settings_at(start, point).items()))


@functools.cache  # a search asks for the same recipes and runs again and again
def _replaced(recipe: Recipe, epochs: int, settings: tuple[tuple[str, Any], ...]) -> Recipe:
    return recipe.replace(epochs=epochs, **dict(settings))


@functools.cache
def _tuning_run(recipe: Recipe, settings: tuple[tuple[str, float], ...]) -> Run:
    return Run("tune", recipe.replace(**dict(settings), seed=TUNING_SEED))


def settings_at(start: Settings, point: Point) -> Settings:
    """The settings at a point: four digits, so that a value reached in two ways is the same."""
    return {
        name: float(f"{value * 2 ** (power / 2):.4g}")
        for (name, value), power in zip(start.items(), point, strict=True)
    }


def tuning_stages(studies: Iterable[SearchStudy], store: Store, rows: Sequence[str]) -> Iterator[list[Run]]:
    """The tuning runs of some rows, "base" among them: what can be trained by now, then all that are expected."""
    pairs = [(study, row) for study in studies for row in rows]
    yield [run for study, row in pairs for run in study.tuning(store, row)]
    yield [run for study, row in pairs for run in study.expected(store, row)]


def search_stages(studies: Iterable[SearchStudy], store: Store, seeds: int) -> Iterator[list[Run]]:
    """What can be trained by now, then the rest. In each study tuning comes first, then all rows seed by seed."""
    ready: list[Run] = []
    later: list[Run] = []
    for study in studies:
        ready += [run for row in study.rows() for run in study.tuning(store, row)]
        recipes = study.reported(store)
        tuned = {row: study.is_tuned(store, row) for row in recipes}
        for seed in range(seeds):
            for row, recipe in recipes.items():
                (ready if tuned[row] else later).append(Run("train", recipe.replace(seed=seed)))
    yield ready
    yield later
