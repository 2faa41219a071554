"""Tables "Sensitivity of α" and "Sensitivity of ρ": one setting of Look-LayerSAM is moved away from its tuned value."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from looksam.experiments import claims
from looksam.experiments.engine.reported import accuracies, reported_runs
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.search import tuning_stages
from looksam.experiments.engine.statistics import RULE, difference, significant
from looksam.experiments.experiment import Experiment, Findings, mean_entry, mean_series, paper_entry, paper_number
from looksam.experiments.report.document import Claim, Entry, Figure, Series, Table
from looksam.experiments.small_scale import LAYER, lamb_studies
from looksam.trainer.recipe import Recipe

BATCHES = {50: 16384, 400: 32768}  # ours, with the paper's that they stand for


class Point(NamedTuple):
    """One value of the setting that is moved."""

    label: str  # of the row
    paper: str  # the column of the paper's table
    x: float
    move: Callable[[Recipe], Recipe]


@dataclass(frozen=True)
class Sensitivity:
    """The accuracy of Look-LayerSAM as one of its settings moves."""

    setting: str  # of a recipe, and the name of the experiment
    title: str
    question: str
    header: str  # of the column of values
    points: Sequence[Point]
    paper_values: tuple[float, ...]  # at full scale
    note: str
    claim: Callable[[claims.Scores], Claim]

    def experiment(self) -> Experiment:
        return Experiment(
            name=self.setting,
            title=self.title,
            question=self.question,
            stages=self.stages,
            findings=self.findings,
            full=tuple(f"vit_b16-lamb-{batch}-look_layer_sam" for batch in BATCHES.values()),
            full_settings=tuple({self.setting: value} for value in self.paper_values),
            full_score=self.full_score,
        )

    def recipes(self, store: Store) -> dict[tuple[str, int], list[Recipe]]:
        """For each label-noise setting and batch, the tuned Look-LayerSAM moved to every point."""
        return {
            place: [point.move(study.tuned(store, LAYER)) for point in self.points]
            for place, study in lamb_studies(tuple(BATCHES)).items()
        }

    def stages(self, store: Store, seeds: int) -> Iterator[list[Run]]:
        yield from tuning_stages(lamb_studies(tuple(BATCHES)).values(), store, ("base", LAYER))
        yield reported_runs([recipe for here in self.recipes(store).values() for recipe in here], seeds)

    def findings(self, store: Store, seeds: int) -> Findings:
        scores = {
            f"{labels}, batch {batch}": [accuracies(store, recipe, seeds) for recipe in here]
            for (labels, batch), here in self.recipes(store).items()
        }
        header = (self.header, *scores, *(f"paper: {batch:,}" for batch in BATCHES.values()))
        rows: list[tuple[Entry, ...]] = []
        for i, point in enumerate(self.points):
            theirs = [paper_entry(self.setting, point.paper, batch=str(batch)) for batch in BATCHES.values()]
            rows.append((point.label, *(mean_entry(here[i]) for here in scores.values()), *theirs))
        return Findings(
            [_answer(place, self.points, here) for place, here in scores.items()],
            [Table("Test accuracy in % of Look-LayerSAM-5, LAMB, small ViT", header, rows)],
            [self._figure(scores)],
            [self.note, f"{RULE} Here these are all pairs of values."],
            [self.claim({place: dict(zip(self._labels(), here, strict=True)) for place, here in scores.items()})],
        )

    def _labels(self) -> list[str]:
        return [point.label for point in self.points]

    def full_score(self, recipe: Recipe) -> float | None:
        """The paper's score of a recipe at full scale."""
        return paper_number(self.setting, f"{getattr(recipe, self.setting):.1f}", batch=str(recipe.batch_size))

    def _figure(self, scores: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
        x = [point.x for point in self.points]
        series = [
            Series(place, x, *mean_series([mean_entry(part) for part in here]), i)
            for i, (place, here) in enumerate(scores.items())
        ]
        return Figure(self.setting, self.title, self.header, "test accuracy, %", series)


def _answer(place: str, points: Sequence[Point], scores: Sequence[Sequence[float]]) -> str:
    means = [sum(values) / len(values) for values in scores]
    best = max(range(len(points)), key=lambda i: means[i])
    # The best value is chosen from the same data, so the correction is for all pairs.
    pairs = {pair: difference(*(scores[i] for i in pair)) for pair in itertools.combinations(range(len(points)), 2)}
    worse_ones = [pair[0] + pair[1] - best for pair, clear in significant(pairs).items() if clear and best in pair]
    names = [points[i].label for i in sorted(worse_ones)]
    worse = f"significantly worse: {', '.join(names)}" if names else "no other value is significantly worse"
    apart = f"the means lie within {max(means) - min(means):.2f} points"
    return f"{place}: best at {points[best].label} ({means[best]:.2f} %); {worse}; {apart}."


def _alpha(value: float) -> Point:
    return Point(f"{value:g}", f"{value:.1f}", value, lambda recipe: recipe.replace(alpha=value))


def _rho(factor: float) -> Point:
    def move(recipe: Recipe) -> Recipe:
        return recipe.replace(rho=round(recipe.rho * factor, 6))

    return Point(f"{factor:g} × ρ", f"{factor:.1f}", factor, move)


ALPHA = Sensitivity(
    setting="alpha",
    title="Sensitivity to α",
    question="How much does the accuracy of Look-LayerSAM depend on α, the strength of the reused part?",
    header="α",
    points=[_alpha(value) for value in (0.1, 0.3, 0.5, 0.7, 1.0)],
    paper_values=(0.5, 0.7, 1.0),
    note=(
        "The paper's values of α, and two smaller ones, since smaller values are selected for small models; ρ and the "
        "learning rate are as tuned."
    ),
    claim=lambda scores: claims.is_best(
        "α = 0.7 is the best of 0.5, 0.7 and 1.0",
        {place: {label: rows[label] for label in ("0.5", "0.7", "1")} for place, rows in scores.items()},
        "0.7",
        "α = 0.7",
    ),
).experiment()

RHO = Sensitivity(
    setting="rho",
    title="Sensitivity to ρ",
    question="How much does the accuracy of Look-LayerSAM depend on ρ, the radius of the perturbation?",
    header="ρ, relative to the tuned one",
    points=[_rho(factor) for factor in (0.5, 0.8, 1.0, 1.2)],
    paper_values=(0.5, 0.8, 1.0, 1.2),
    note=(
        "The tuned ρ takes the place of the paper's optimum, ρ = 1, and the other values are the same multiples of it. "
        "The learning rate and α are as tuned."
    ),
    claim=lambda scores: claims.is_robust("Accuracy depends little on ρ", scores),
).experiment()
