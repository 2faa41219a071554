"""Tables "Sensitivity of α" and "Sensitivity of ρ": one setting of Look-LayerSAM is moved away from its pick."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from looksam.experiments import lamb
from looksam.experiments.entries import printed, spread
from looksam.experiments.report.document import Entry, Figure, Section, Series, Table
from looksam.experiments.significance import RULE, difference, significant
from looksam.experiments.store import Store
from looksam.experiments.study import accuracies
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables as paper

BATCHES = {50: 16384, 400: 32768}  # of ours, with the paper's that they stand for


class Point(NamedTuple):
    label: str  # of the row
    paper: str  # the column of the paper's table
    x: float
    move: Callable[[Recipe], Recipe]


Cells = dict[tuple[str, int], list[Recipe]]


def recipes(store: Store, points: Sequence[Point]) -> Cells:
    """For each column and batch, the tuned Look-LayerSAM moved to every point."""
    return {
        where: [point.move(study.tuned(store, lamb.LAYER)) for point in points]
        for where, study in lamb.studies(tuple(BATCHES)).items()
    }


def section(
    name: str, title: str, question: str, letter: str, points: Sequence[Point], store: Store, seeds: int, note: str
) -> Section:
    cells = recipes(store, points)
    scores = {where: [accuracies(store, recipe, seeds) for recipe in here] for where, here in cells.items()}
    header = (letter, *(f"{column}, batch {batch}" for column, batch in cells), *_paper_titles())
    rows: list[tuple[Entry, ...]] = []
    for i, point in enumerate(points):
        theirs = [_paper(name, batch, point) for batch in BATCHES.values()]
        rows.append((point.label, *(spread(here[i]) for here in scores.values()), *theirs))
    return Section(
        name,
        title,
        question,
        [_answer(f"{column}, batch {batch}", points, scores[column, batch]) for column, batch in cells],
        [Table("Test accuracy in % of Look-LayerSAM-5, LAMB, small ViT", header, rows)],
        [_figure(name, title, letter, points, scores)],
        [note, f"{RULE} Here these are all pairs of values."],
    )


def _paper_titles() -> list[str]:
    return [f"paper: {batch:,}" for batch in BATCHES.values()]


def _paper(table: str, batch: int, point: Point) -> Entry:
    return printed(paper.number(table, point.paper, batch=str(batch)))


def _answer(where: str, points: Sequence[Point], scores: Sequence[Sequence[float]]) -> str:
    means = [sum(values) / len(values) for values in scores]
    best = max(range(len(points)), key=lambda i: means[i])
    # which is best is seen in the same data, so the correction is for all pairs, whichever had come out best
    pairs = {pair: difference(*(scores[i] for i in pair)) for pair in itertools.combinations(range(len(points)), 2)}
    worse_ones = [pair[0] + pair[1] - best for pair, yes in significant(pairs).items() if yes and best in pair]
    clear = [points[i].label for i in sorted(worse_ones)]
    worse = f"significantly worse: {', '.join(clear)}" if clear else "no other value is significantly worse"
    apart = f"the means lie within {max(means) - min(means):.2f} points"
    return f"{where}: best at {points[best].label} ({means[best]:.2f} %); {worse}; {apart}."


def _figure(name: str, title: str, letter: str, points: Sequence[Point], scores: dict) -> Figure:
    series = []
    for i, ((column, batch), here) in enumerate(scores.items()):
        values = [spread(part) for part in here]
        y, error = [v.value for v in values], [v.error or 0.0 for v in values]
        series.append(Series(f"{column}, batch {batch}", [p.x for p in points], y, error, i))
    return Figure(name, title, letter, "test accuracy, %", series)
