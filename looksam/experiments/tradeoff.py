"""Figure "Accuracy-Training Time": accuracy and throughput as k grows."""

from collections.abc import Iterator

import numpy as np

from looksam.experiments import timing, vit
from looksam.experiments.entries import printed, ratio, spread
from looksam.experiments.report.document import Entry, Figure, Section, Series, Table, Value
from looksam.experiments.store import Store
from looksam.experiments.study import accuracies, seeds_of, tuning_stages
from looksam.experiments.task import Task
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables as paper

NAME = "tradeoff"
TITLE = "Accuracy against training time"
QUESTION = "What does a larger k cost in accuracy, and what does it bring in speed?"
FULL = ("vit_b16-look_sam-5",)
PERIODS = (1, 2, 3, 5, 10, 20)
FULL_SETTINGS = tuple({"k": k} for k in PERIODS)
TIMED = "vit"


def recipes(store: Store) -> dict[str, dict[int, Recipe]]:
    return {
        column: {k: study.tuned(store, "look_sam", k=k) for k in PERIODS} for column, study in vit.studies().items()
    }


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    yield from tuning_stages(vit.studies().values(), store, ("base", "look_sam"))
    found = recipes(store)
    yield [task for rows in found.values() for recipe in rows.values() for task in seeds_of(recipe, seeds)]


def section(store: Store, seeds: int) -> Section:
    columns = recipes(store)
    scores = {c: {k: accuracies(store, recipe, seeds) for k, recipe in rows.items()} for c, rows in columns.items()}
    times = timing.ratios(store, TIMED)
    speed = {k: times["look_sam_1"][1] / times[f"look_sam_{k}"][1] for k in PERIODS} if times else {}
    theirs = ("paper: ViT-B-16, top-1 %", "paper: throughput of k = 1")
    header = ("k", *(f"{c}, test %" for c in columns), "throughput of k = 1", "gradients a step", *theirs)
    lines: list[tuple[Entry, ...]] = []
    for k in PERIODS:
        ours = [spread(scores[column][k]) for column in columns]
        fast = Value(speed[k], digits=2, unit="×") if speed else None
        lines.append((str(k), *ours, fast, Value(1 + 1 / k, digits=2), *_paper(k)))
    return Section(
        NAME,
        TITLE,
        QUESTION,
        [_answer(column, scores[column], speed) for column in columns],
        [Table("LookSAM-k on the small ViT, AdamW", header, lines)],
        _figures(scores, speed),
        [
            "k = 1 takes the second gradient on every step, which is SAM at LookSAM's ρ. ρ and α are those picked at "
            "k = 5. Throughput is the inverse of the measured time a step.",
        ],
    )


def full_score(recipe: Recipe) -> float | None:
    return paper.number("throughput", "top1", model=recipe.model, method=_paper_row(recipe.k))


def _paper_row(k: int) -> str:
    return "sam" if k == 1 else f"look_sam_{k}"


def _paper(k: int) -> tuple[Entry, Entry]:
    row = _paper_row(k)
    top1 = paper.number("throughput", "top1", model="vit_b16", method=row)
    rate, first = (paper.number("throughput", "images_per_second", model="vit_b16", method=m) for m in (row, "sam"))
    return printed(top1), ratio(rate, first)


def _answer(column: str, scores: dict[int, list[float]], speed: dict[int, float]) -> str:
    drops = ", ".join(f"{np.mean(scores[k]) - np.mean(scores[1]):+.2f} at k = {k}" for k in PERIODS[1:])
    fast = f"; throughput grows {speed[5]:.2f}-fold at k = 5 and {speed[20]:.2f}-fold at k = 20" if speed else ""
    return f"{column}: accuracy against k = 1, in points: {drops}{fast}."


def _figures(scores: dict[str, dict[int, list[float]]], speed: dict[int, float]) -> list[Figure]:
    def series(x: list[float]) -> list[Series]:
        found = []
        for i, (column, rows) in enumerate(scores.items()):
            values = [spread(rows[k]) for k in PERIODS]
            found.append(Series(column, x, [v.value for v in values], [v.error or 0.0 for v in values], i))
        return found

    title = "LookSAM-k, small ViT"
    figures = [
        Figure("tradeoff-k", title, "k", "test accuracy, %", series([float(k) for k in PERIODS]), log_x=True),
    ]
    if speed:
        x = [speed[k] for k in PERIODS]
        figures.append(Figure("tradeoff-throughput", title, "throughput of k = 1", "test accuracy, %", series(x)))
    return figures
