"""Figure "Accuracy-Training Time": accuracy and throughput as k grows."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from looksam.experiments import claims
from looksam.experiments.engine.reported import accuracies, reported_runs
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.search import tuning_stages
from looksam.experiments.engine.statistics import LEVEL, difference
from looksam.experiments.engine.timer import stored_ratios
from looksam.experiments.experiment import (
    Experiment,
    Findings,
    mean_entry,
    mean_series,
    paper_number,
    printed,
    ratio,
    times_entry,
)
from looksam.experiments.report.document import Entry, Figure, Series, Table, Value
from looksam.experiments.small_scale import vit_studies
from looksam.methods import METHODS, settings_of
from looksam.trainer.recipe import Recipe

LOOK_SAM = METHODS["look_sam"]
PERIODS = (1, 2, 3, 5, 10, 20)
TIMED = "vit"
THROUGHPUT = "throughput relative to k = 1"
# By k, the row whose selected hyper-parameters it has: its own where that is tuned.
TUNED = {k: LOOK_SAM.every_step if k == 1 else LOOK_SAM.row_name(max(k, 5)) for k in PERIODS}

Scores = Mapping[int, Sequence[float]]  # by k: the accuracy of each seed


def recipes(store: Store) -> dict[str, dict[int, Recipe]]:
    """By label-noise setting, then by k."""
    return {
        labels: {k: study.tuned(store, row, **settings_of(_row(k))) for k, row in TUNED.items()}
        for labels, study in vit_studies().items()
    }


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    yield from tuning_stages(vit_studies().values(), store, ("base", *dict.fromkeys(TUNED.values())))
    yield reported_runs([recipe for rows in recipes(store).values() for recipe in rows.values()], seeds)


def findings(store: Store, seeds: int) -> Findings:
    scores = {
        labels: {k: accuracies(store, recipe, seeds) for k, recipe in rows.items()}
        for labels, rows in recipes(store).items()
    }
    times = {k: stored_ratios(store, TIMED).get(_row(k)) for k in PERIODS}
    speed = {k: times[1][1] / quartiles[1] for k, quartiles in times.items() if times[1] and quartiles}
    ours = (*(f"{labels}, test %" for labels in scores), THROUGHPUT, "gradients per step")
    lines: list[tuple[Entry, ...]] = []
    for k in PERIODS:
        means = [mean_entry(rows[k]) for rows in scores.values()]
        gradients = Value(LOOK_SAM.gradients_per_step(k), digits=2)
        lines.append((str(k), *means, times_entry(speed.get(k)), gradients, *_paper(k)))
    return Findings(
        [_answer(labels, rows, speed) for labels, rows in scores.items()],
        [
            Table(
                "LookSAM-k on the small ViT, AdamW",
                ("k", *ours, "paper: ViT-B-16, top-1 %", f"paper: {THROUGHPUT}"),
                lines,
            )
        ],
        _figures(scores, speed),
        [
            "k = 1 is SAM at its own best settings. LookSAM is tuned at k = 5, 10 and 20 each; k = 2 and 3 have the "
            "settings selected at k = 5. Throughput is the inverse of the measured step time.",
        ],
        [claims.claim("Up to k = 5 nothing is lost; a larger k trades accuracy for speed", _found(scores))],
    )


def _found(scores: Mapping[str, Scores]) -> dict[str, claims.Finding]:
    """Whether k = 5 is not significantly below k = 1, and k = 20 below k = 5."""
    findings: dict[str, claims.Finding] = {}
    for labels, rows in scores.items():
        five, twenty = difference(rows[5], rows[1]), difference(rows[20], rows[5])
        kept = five.mean >= 0 or five.p >= LEVEL
        findings[labels] = (
            kept and twenty.mean < 0,
            f"{five.mean:+.2f} at k = 5, {twenty.mean:+.2f} from there to k = 20",
        )
    return findings


def full_score(recipe: Recipe) -> float | None:
    """The paper's score of LookSAM-k at full scale."""
    return paper_number("throughput", "top1", model=recipe.model, method=_row(recipe.k))


def _row(k: int) -> str:
    return LOOK_SAM.every_step if k == 1 else LOOK_SAM.row_name(k)


def _paper(k: int) -> tuple[Entry, Entry]:
    """The paper's accuracy and throughput of ViT-B-16."""
    row = _row(k)
    top1 = paper_number("throughput", "top1", model="vit_b16", method=row)
    rate, first = (
        paper_number("throughput", "images_per_second", model="vit_b16", method=name) for name in (row, _row(1))
    )
    return printed(top1), times_entry(ratio(rate, first))


def _answer(labels: str, scores: Scores, speed: Mapping[int, float]) -> str:
    drops = ", ".join(f"{np.mean(scores[k]) - np.mean(scores[1]):+.2f} at k = {k}" for k in PERIODS[1:])
    fast = f"; throughput grows {speed[5]:.2f}-fold at k = 5 and {speed[20]:.2f}-fold at k = 20" if speed else ""
    return f"{labels}: accuracy against k = 1, in points: {drops}{fast}."


def _figures(scores: Mapping[str, Scores], speed: Mapping[int, float]) -> list[Figure]:
    def series(x: list[float]) -> list[Series]:
        means = {labels: mean_series([mean_entry(rows[k]) for k in PERIODS]) for labels, rows in scores.items()}
        return [Series(labels, x, *y_and_error, i) for i, (labels, y_and_error) in enumerate(means.items())]

    title = "LookSAM-k, small ViT"
    figures = [
        Figure("tradeoff-k", title, "k", "test accuracy, %", series([float(k) for k in PERIODS]), log_x=True),
    ]
    if speed:
        x = [speed[k] for k in PERIODS]
        figures.append(Figure("tradeoff-throughput", title, THROUGHPUT, "test accuracy, %", series(x)))
    return figures


TRADEOFF = Experiment(
    name="tradeoff",
    title="Accuracy against training time",
    question="What does a larger k cost in accuracy, and what does it bring in speed?",
    stages=stages,
    findings=findings,
    timings=(TIMED,),
    full=("vit_b16-look_sam-5",),
    full_settings=tuple({"k": k} for k in PERIODS),
    full_score=full_score,
)
