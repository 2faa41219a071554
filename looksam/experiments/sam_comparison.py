"""Base, SAM, SAM-k and LookSAM-k side by side: what the tables on CIFAR-100 and of ViTs have in common."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from looksam.experiments import claims
from looksam.experiments.claims import KEPT
from looksam.experiments.engine.reported import accuracies, numbers, reported_records, reported_runs
from looksam.experiments.engine.runner import curve_epochs
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.search import HOW, SearchStudy, tuning_stages
from looksam.experiments.engine.statistics import (
    RULE,
    above_or_below,
    difference,
    mean_and_standard_error,
    share_kept,
    significant,
    verdict,
)
from looksam.experiments.engine.timer import stored_ratios
from looksam.experiments.experiment import SETTINGS, Findings, mean_entry, mean_series, setting_entries, times_entry
from looksam.experiments.report.document import Entry, Figure, Series, Table, Value
from looksam.experiments.small_scale import PERIODS, SAM_ROWS
from looksam.methods import METHODS, label, parse_row
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import gradients_per_step
from looksam.trainer.training import total_steps

AS_AT_5 = ", as at k = 5"  # ends the name of a row with another k, at the hyper-parameters selected for k = 5
CURVES = ("base", "sam", "sam_5", "look_sam_5")

Recipes = Mapping[str, Recipe]  # by row
PaperColumns = Mapping[str, Callable[[str], Entry]]  # by title: the paper's entry for a row


def tuned_rows(study: SearchStudy, store: Store) -> dict[str, Recipe]:
    """The recipe of each row at the hyper-parameters selected for it; where k is not 5, also at those of k = 5."""
    rows = {}
    for row in SAM_ROWS:
        rows[row], (method, k, *_) = study.tuned(store, row), parse_row(row)
        if k in PERIODS[1:]:
            rows[row + AS_AT_5] = study.tuned(store, method.row_name(5), k=k)
    return rows


def stages(studies: Mapping[str, SearchStudy], store: Store, seeds: int) -> Iterator[list[Run]]:
    """The tuning runs of all studies, then the reported runs."""
    yield from tuning_stages(studies.values(), store, SAM_ROWS)
    yield reported_runs([r for study in studies.values() for r in tuned_rows(study, store).values()], seeds)


def findings(
    name: str,
    *,
    model: str,
    timed: str,
    studies: Mapping[str, SearchStudy],
    paper: PaperColumns,
    store: Store,
    seeds: int,
) -> Findings:
    """The findings of an experiment ``name``.

    ``model`` is what people call the small model, ``timed`` the timing that goes with it, and ``studies`` are given by
    label-noise setting.
    """
    recipes = {labels: tuned_rows(study, store) for labels, study in studies.items()}
    sentences, figures = [], []
    for labels, rows in recipes.items():
        sentences += [*answers(labels, rows, store, seeds), final_losses(labels, rows, store, seeds)]
        stem = f"{name}-{'noise' if rows['base'].label_noise else 'clean'}"
        figures += cost_figure(f"{stem}-cost", f"{model}, {labels}", rows, store, seeds, timed)
        figures.append(curve_figure(f"{stem}-curves", f"{model}, {labels}", rows, store, seeds))
    tables = [
        accuracy_table(f"{model}, 20 classes of CIFAR-100", recipes, store, seeds, timed, paper),
        selected_table(studies, store, seeds),
    ]
    scores = {labels: {row: accuracies(store, rows[row], seeds) for row in CURVES} for labels, rows in recipes.items()}
    found = claims.of_look_sam(scores, stored_ratios(store, timed), model)
    return Findings(sentences, tables, figures, [*notes(seeds), OTHER_PERIODS], found)


# --- tables -----------------------------------------------------------------------------------------------------


def accuracy_table(
    title: str, recipes: Mapping[str, Recipes], store: Store, seeds: int, timed: str, paper: PaperColumns
) -> Table:
    """Our accuracies for each label-noise setting, what a step costs, and the paper's numbers."""
    times = stored_ratios(store, timed)
    accuracy = [f"{labels}, test %" for labels in recipes]
    header = ("method", *accuracy, "gradients per step", "relative step time", *(f"paper: {name}" for name in paper))
    lines: list[tuple[Entry, ...]] = []
    for row, recipe in next(iter(recipes.values())).items():
        ours = [mean_entry(accuracies(store, rows[row], seeds)) for rows in recipes.values()]
        gradients = Value(gradients_per_step(recipe, total_steps(recipe)), digits=2)
        named = row.removesuffix(AS_AT_5)
        time = times_entry(times[named][1] if named in times else None)
        theirs = [entry(row) if row == named else None for entry in paper.values()]
        lines.append((label(named, recipe.optimizer) + row[len(named) :], *ours, gradients, time, *theirs))
    return Table(title, header, lines)


def selected_table(studies: Mapping[str, SearchStudy], store: Store, seeds: int) -> Table:
    """The hyper-parameters of each row, their score on the held-out images, and where training ended."""
    measures = {"training loss": "train_loss_at_end", "sharpness, train": "sharpness_train", "test": "sharpness_test"}
    header = ("labels", "method", *SETTINGS, "settings tried", "held-out %", *measures)
    lines: list[tuple[Entry, ...]] = []
    for labels, study in studies.items():
        for row in SAM_ROWS:
            recipe, tried = study.tuned(store, row), study.tried(store, row)
            records = reported_records(store, recipe, seeds)
            measured = [mean_entry(numbers(records, measure), 3) for measure in measures.values()]
            search = str(len(tried)), Value(tried[0][1])
            lines.append((labels, label(row, recipe.optimizer), *setting_entries(recipe), *search, *measured))
    return Table("Selected hyper-parameters, and the end of training", header, lines)


# --- sentences --------------------------------------------------------------------------------------------------


def answers(labels: str, recipes: Recipes, store: Store, seeds: int) -> list[str]:
    """Plain sentences on one label-noise setting, by the rule of significance."""
    scores = {row: accuracies(store, recipe, seeds) for row, recipe in recipes.items()}
    pairs = [("sam", "base")]
    pairs += [(f"look_sam_{k}", other) for k in PERIODS for other in ("base", f"sam_{k}", "sam")]
    as_at_5 = [(f"look_sam_{k}{AS_AT_5}", f"look_sam_{k}") for k in PERIODS[1:]]
    differences = {(row, other): difference(scores[row], scores[other]) for row, other in [*pairs, *as_at_5]}
    clear = significant(differences)
    gain = differences["sam", "base"]
    sentences = [
        f"{labels}: SAM {'gains' if gain.mean >= 0 else 'loses'} {abs(gain.mean):.2f} points against the base "
        f"(95 % interval {gain.low:+.2f} to {gain.high:+.2f}), {verdict(clear['sam', 'base'])}."
    ]
    if clear["sam", "base"] and gain.mean > 0:
        sentences += [_kept(labels, k, scores) for k in PERIODS]
    else:
        sentences.append(f"{labels}: SAM has no clear gain here, so there is none for LookSAM to keep.")
    for k in PERIODS:
        parts = [
            f"{above_or_below(differences[pair].mean)} {label(pair[1])} ({verdict(clear[pair])})"
            for pair in pairs
            if pair[0] == f"look_sam_{k}"
        ]
        sentences.append(f"{labels}: LookSAM-{k} is {', '.join(parts)}.")
    parts = [
        f"LookSAM-{k} is {above_or_below(differences[pair].mean)} the same tuned at k = {k} ({verdict(clear[pair])})"
        for k, pair in zip(PERIODS[1:], as_at_5, strict=True)
    ]
    return [*sentences, f"{labels}: at the settings of k = 5, {', '.join(parts)}."]


def _kept(labels: str, k: int, scores: Mapping[str, Sequence[float]]) -> str:
    share = round(100 * share_kept(scores["base"], scores["sam"], scores[f"look_sam_{k}"]), 1)  # judged as printed
    verdict = f"{'at least' if share >= KEPT else 'less than'} our threshold of {KEPT} %"
    return f"{labels}: LookSAM-{k} keeps {share:.1f} % of SAM's gain, {verdict}."


def final_losses(labels: str, recipes: Recipes, store: Store, seeds: int) -> str:
    """Where training ended: a method that has not fitted its images is slowed down, not flattened."""
    ends = []
    for row in CURVES:
        loss = np.mean(numbers(reported_records(store, recipes[row], seeds), "train_loss_at_end"))
        ends.append(f"{label(row, recipes[row].optimizer)} {loss:.3f}")
    return f"{labels}: training loss at the end (no augmentation): {', '.join(ends)}."


OTHER_PERIODS = (
    'SAM-10, SAM-20, LookSAM-10 and LookSAM-20 are tuned at their own k; the rows that end in "as at k = 5" have the '
    "settings selected for SAM-5 and LookSAM-5."
)


def notes(seeds: int) -> list[str]:
    """How the methods were tuned and compared."""
    return [
        RULE,
        f"Each method is tuned on held-out training images, in runs as long as the reported ones, one per setting: "
        f"{HOW} The reported runs have {seeds} other seeds; the test set was read once, at their end. ± is one "
        "standard error.",
    ]


# --- figures ----------------------------------------------------------------------------------------------------


def held_out_curves(recipe: Recipe, store: Store, seeds: int) -> np.ndarray:
    """The learning curves on the held-out images, of shape (seeds, points)."""
    return np.array([record["validation_accuracy"] for record in reported_records(store, recipe, seeds)])


def curve_figure(name: str, title: str, recipes: Recipes, store: Store, seeds: int) -> Figure:
    """Learning curves on the held-out images."""
    series = []
    for row in CURVES:
        recipe = recipes[row]
        mean, error = mean_and_standard_error(held_out_curves(recipe, store, seeds))
        text, style = label(row, recipe.optimizer), parse_row(row).method.name
        series.append(Series(text, curve_epochs(recipe.epochs), _rounded(mean), _rounded(error), style))
    return Figure(name, title, "epoch", "accuracy on held-out images, %", series)


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]


def cost_figure(name: str, title: str, recipes: Recipes, store: Store, seeds: int, timed: str) -> list[Figure]:
    """Accuracy against time, where times were measured."""
    times = stored_ratios(store, timed)
    if not times:
        return []
    series = []
    for method in dict.fromkeys(parse_row(row).method.name for row in SAM_ROWS):
        rows = [row for row in SAM_ROWS if parse_row(row).method.name == method and row in times]
        y, error = mean_series([mean_entry(accuracies(store, recipes[row], seeds)) for row in rows])
        x = [times[row][1] for row in rows]
        text = METHODS[method].display() if method != "base" else label("base", recipes["base"].optimizer)
        series.append(Series(text, x, _rounded(y), _rounded(error), method))
    return [Figure(name, title, "step time relative to base", "test accuracy, %", series)]
