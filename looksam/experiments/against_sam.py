"""Base, SAM, SAM-k and LookSAM-k side by side: what the tables on CIFAR-100 and of ViTs both show."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from looksam.experiments import timing, variants
from looksam.experiments.compare.sweep import curve_epochs
from looksam.experiments.entries import spread
from looksam.experiments.naming import display, style
from looksam.experiments.report.document import Entry, Figure, Section, Series, Table, Value
from looksam.experiments.significance import RULE, difference, share_kept, significant
from looksam.experiments.store import Record, Store
from looksam.experiments.study import TUNING_SEEDS, Study, accuracies, found
from looksam.experiments.work import CURVE_POINTS
from looksam.trainer.optimizers import gradients_per_step
from looksam.trainer.recipe import Recipe

CURVES = ("base", "sam", "sam_5", "look_sam_5")
KEPT = 80  # percent of SAM's gain, from which on LookSAM is said to keep it


def section(
    name: str,
    title: str,
    question: str,
    *,
    model: str,
    timed: str,
    studies: Mapping[str, Study],
    paper: Mapping[str, Callable[[str], Entry]],
    store: Store,
    seeds: int,
) -> Section:
    """``model`` is what people call the desk model, ``timed`` the timing that goes with it."""
    columns = {column: variants.rows(study, store) for column, study in studies.items()}
    sentences, figures = [], []
    for column, recipes in columns.items():
        sentences += [*answers(column, recipes, store, seeds), why(column, studies[column], store, seeds)]
        stem = f"{name}-{'noise' if recipes['base'].label_noise else 'clean'}"
        figures += cost_figure(f"{stem}-cost", f"{model}, {column}", recipes, store, seeds, timed)
        figures.append(curves(f"{stem}-curves", f"{model}, {column}", recipes, store, seeds))
    tables = [
        accuracy_table(f"{model}, 20 classes of CIFAR-100", columns, store, seeds, timed, paper),
        picks_table(studies, store, seeds),
    ]
    return Section(name, title, question, sentences, tables, figures, notes(next(iter(studies.values())), seeds))


def numbers(records: Sequence[Record], name: str) -> list[float]:
    """One of each run; NaN of a run in which it was not finite, for which None is stored."""
    return [math.nan if record[name] is None else record[name] for record in records]


def accuracy_table(
    title: str,
    columns: Mapping[str, Mapping[str, Recipe]],
    store: Store,
    seeds: int,
    timed: str,
    paper: Mapping[str, Callable[[str], Entry]],
) -> Table:
    """Ours for each column, what a step costs, and the paper's numbers."""
    first = next(iter(columns.values()))
    times = timing.ratios(store, timed)
    names = [f"{column}, test %" for column in columns]
    header = ("method", *names, "gradients a step", "time of base", *(f"paper: {name}" for name in paper))
    lines: list[tuple[Entry, ...]] = []
    for row, recipe in first.items():
        ours = [spread(accuracies(store, recipes[row], seeds)) for recipes in columns.values()]
        time = Value(times[row][1], digits=2, unit="×") if row in times else None
        cost = Value(gradients_per_step(recipe), digits=2)
        name = display(row, recipe.optimizer)
        lines.append((name, *ours, cost, time, *(number(row) for number in paper.values())))
    return Table(title, header, lines)


def picks_table(columns: Mapping[str, Study], store: Store, seeds: int) -> Table:
    """What each method was run at, how it scored on the held-out images, and where its training ended."""
    header = ("column", "method", "rate", "ρ", "α", "held-out %", "training loss", "sharpness, train", "test")
    lines: list[tuple[Entry, ...]] = []
    for column, study in columns.items():
        for method in variants.METHODS:
            recipe, scores = study.tuned(store, method), study.scores(store, method)
            records = found(store, recipe, seeds)
            names = ("train_loss_at_end", "sharpness_train", "sharpness_test")
            measured = [spread(numbers(records, name), 3) for name in names]
            rho = f"{recipe.rho:g}" if method != "base" else None
            alpha = f"{recipe.alpha:g}" if method == "look_sam" else None
            label = display(_tuned_row(method), recipe.optimizer)
            best = Value(max(scores), digits=2) if scores else None
            lines.append((column, label, f"{recipe.learning_rate:g}", rho, alpha, best, *measured))
    return Table("What was picked, and where training ended", header, lines)


def _tuned_row(method: str) -> str:
    """Methods with a k are tuned at 5."""
    return {"sam_k": "sam_5", "look_sam": "look_sam_5"}.get(method, method)


def answers(column: str, recipes: Mapping[str, Recipe], store: Store, seeds: int) -> list[str]:
    """Plain sentences on one column, by the rule of significance."""
    scores = {row: accuracies(store, recipe, seeds) for row, recipe in recipes.items()}
    compared = {"sam": ("sam", "base")}
    for k in variants.PERIODS:
        compared[f"base {k}"] = (f"look_sam_{k}", "base")
        compared[f"sam_k {k}"] = (f"look_sam_{k}", f"sam_{k}")
        compared[f"sam {k}"] = (f"look_sam_{k}", "sam")
    found_differences = {name: difference(scores[a], scores[b]) for name, (a, b) in compared.items()}
    clear = significant(found_differences)
    gain = found_differences["sam"]
    sentences = [
        f"{column}: SAM {'gains' if gain.mean >= 0 else 'loses'} {abs(gain.mean):.2f} points against the base "
        f"(95 % interval {gain.low:+.2f} to {gain.high:+.2f}), {_verdict(clear['sam'])}."
    ]
    if clear["sam"] and gain.mean > 0:
        sentences += [_kept(column, k, scores) for k in variants.PERIODS]
    else:
        sentences.append(f"{column}: SAM has no clear gain here, so there is none for LookSAM to keep.")
    for k in variants.PERIODS:
        parts = [
            f"{_against(found_differences[f'{other} {k}'].mean)} {display(name)} ({_verdict(clear[f'{other} {k}'])})"
            for other, name in (("base", "base"), ("sam_k", f"sam_{k}"), ("sam", "sam"))
        ]
        sentences.append(f"{column}: LookSAM-{k} is {', '.join(parts)}.")
    return sentences


def _kept(column: str, k: int, scores: Mapping[str, Sequence[float]]) -> str:
    share = round(100 * share_kept(scores["base"], scores["sam"], scores[f"look_sam_{k}"]), 1)  # judged as printed
    verdict = f"{'at least' if share >= KEPT else 'less than'} the {KEPT} % asked for"
    return f"{column}: LookSAM-{k} keeps {share:.1f} % of SAM's gain, {verdict}."


def _against(mean: float) -> str:
    return f"{abs(mean):.2f} points {'above' if mean >= 0 else 'below'}"


def _verdict(clear: bool) -> str:
    return "significant" if clear else "not significant"


def why(column: str, study: Study, store: Store, seeds: int) -> str:
    """Where training ended: a method that has not fitted its images is slowed down, not flattened."""
    ends = []
    for method in variants.METHODS:
        recipe = study.tuned(store, method)
        loss = np.mean(numbers(found(store, recipe, seeds), "train_loss_at_end"))
        ends.append(f"{display(_tuned_row(method), recipe.optimizer)} {loss:.3f}")
    return f"{column}: training loss at the end (no augmentation): {', '.join(ends)}."


def curves(name: str, title: str, recipes: Mapping[str, Recipe], store: Store, seeds: int) -> Figure:
    series = []
    for row in CURVES:
        recipe = recipes[row]
        values = np.array([record["validation_accuracy"] for record in found(store, recipe, seeds)])
        error = values.std(axis=0, ddof=1) / np.sqrt(seeds)
        epochs = curve_epochs(recipe.epochs, CURVE_POINTS)
        label = display(row, recipe.optimizer)
        series.append(Series(label, epochs, _list(values.mean(0)), _list(error), style(row)))
    return Figure(name, title, "epoch", "accuracy on held-out images, %", series)


def _list(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]


def cost_figure(
    name: str, title: str, recipes: Mapping[str, Recipe], store: Store, seeds: int, timed: str
) -> list[Figure]:
    """Accuracy against time, where times were measured."""
    times = timing.ratios(store, timed)
    if not times:
        return []
    series = []
    for kind in ("base", "sam", "sam_k", "look_sam"):
        rows = [row for row in recipes if style(row) == kind and row in times]
        values = [spread(accuracies(store, recipes[row], seeds)) for row in rows]
        label = {"sam_k": "SAM-k", "look_sam": "LookSAM-k"}.get(kind) or display(kind, recipes["base"].optimizer)
        x, y = [times[row][1] for row in rows], [value.value for value in values]
        series.append(Series(label, x, _list(y), _list([value.error for value in values]), kind))
    return [Figure(name, title, "time a step, relative to base", "test accuracy, %", series)]


def notes(study: Study, seeds: int) -> list[str]:
    tried = len(study.grids["base"])
    grids = "; ".join(f"{method}: {_grid(grid)}" for method, grid in study.grids.items())
    return [
        RULE,
        f"Each method tried {tried} settings on {len(TUNING_SEEDS)} seeds, scored on held-out training images "
        f"({grids}). The reported runs have {seeds} other seeds; the test set was read once, at their end. "
        "± is one standard error. LookSAM's ρ is fixed: its settings go to α, on which it depends more.",
    ]


def _grid(grid: Sequence[Mapping[str, Any]]) -> str:
    letters = {"learning_rate": "rate", "of_base": "rate of base ×", "rho": "ρ", "alpha": "α"}
    return ", ".join(" ".join(f"{letters[name]} {value:.3g}" for name, value in setting.items()) for setting in grid)
