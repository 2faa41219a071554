"""The rivals: every method at its own best settings, accuracy against cost, on two models, clean and noisy labels."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from looksam.experiments import medium_scale
from looksam.experiments.claims import KEPT
from looksam.experiments.engine.reported import finished_records, numbers
from looksam.experiments.engine.runs import Record, Run, Store
from looksam.experiments.engine.search import HOW, SearchStudy, search_stages
from looksam.experiments.engine.statistics import (
    RULE,
    Difference,
    difference,
    gain_text,
    mean_and_standard_error,
    share_kept,
    significant,
)
from looksam.experiments.engine.timer import stored_ratios
from looksam.experiments.experiment import (
    SETTINGS,
    Experiment,
    Findings,
    mean_entry,
    mean_series,
    setting_entries,
    times_entry,
)
from looksam.experiments.medium_scale import MODELS, TIMINGS, Place
from looksam.experiments.report.document import Entry, Figure, Series, Table, Value
from looksam.methods import label, parse_row
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import gradients_per_step
from looksam.trainer.training import total_steps

VARIANTS = {  # of the methods that have several rows: what the points on their line are
    "base": f": {', '.join(f'{factor:g}' for factor in (1.0, *medium_scale.LONGER))} × the epochs",
    "sam": ": last 20 %, all",
    "look_sam": ": last 20 %, all",
}
LOOK_SAM = "look_sam_5"
DIFFERENCES = ("against the base", f"{label(LOOK_SAM)} against it")  # columns: differences of the last epoch
EQUAL_COST = (("sam", "base ×2"), (LOOK_SAM, "base ×1.2"))  # pairs of rows with as many gradients
LONGER_ROWS = next(iter(medium_scale.studies().values())).longer_rows()
Recipes = Mapping[str, Recipe]  # by row
Scores = Mapping[str, Sequence[float]]  # by row: the accuracy of each seed
Compared = Mapping[tuple[str, str], tuple[Difference, bool]]  # by pair of rows, with whether it is significant


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    return search_stages(medium_scale.studies().values(), store, seeds)


def findings(store: Store, seeds: int) -> Findings:
    """The report; of runs that are not finished yet, it leaves out what depends on them."""
    sentences, tables, figures = [], [], []
    everything, compared = {}, {}
    for place, study in medium_scale.studies().items():
        recipes = study.reported(store)
        records = _records(recipes, store, seeds)
        title = _title(place)
        scores = everything[place] = {row: numbers(found, "test_accuracy") for row, found in records.items()}
        finished, wanted = sum(map(len, scores.values())), seeds * len(scores)
        if finished == wanted:
            compared[place] = _compared(scores)
            sentences += answers(title, place, scores, compared[place], store)
        else:
            sentences.append(f"{title}: {finished} of {wanted} runs are finished.")
        tables.append(_accuracy_table(title, place, recipes, records, compared.get(place, {}), store))
        tables.append(_selected_table(f"{title}: selected hyper-parameters", study, store))
        figures += _figure(title, place, recipes, records, store)
    timed = all(stored_ratios(store, timing) for timing in TIMINGS.values())
    summary = headline(everything, compared, store) if compared and timed else ()
    return Findings(sentences, [_overview_table(everything, store), *tables], figures, notes(seeds), (), summary)


def _records(recipes: Recipes, store: Store, seeds: int) -> dict[str, list[Record]]:
    return {row: finished_records(store, recipe, seeds) for row, recipe in recipes.items()}


def has_a_finished_setting(store: Store, seeds: int) -> bool:
    """Whether all runs of a model with one label-noise setting are finished."""
    return any(
        all(len(found) == seeds for found in _records(study.reported(store), store, seeds).values())
        for study in medium_scale.studies().values()
    )


def _name(row: str, optimizer: str = "") -> str:
    if row in LONGER_ROWS:
        return f"{label('base', optimizer)}, {LONGER_ROWS[row]:g} × the epochs"
    return label(row, optimizer, k=5)


# --- tables and figures -------------------------------------------------------------------------------------------


def _overview_table(everything: Mapping[Place, Scores], store: Store) -> Table:
    """Every method in one line: its accuracy at the last epoch in all settings, and its training time."""
    places = sorted(everything, key=lambda place: list(MODELS).index(place.model))
    lines: list[tuple[Entry, ...]] = []
    for row in everything[places[0]]:
        scores = [mean_entry(everything[place][row]) if everything[place][row] else None for place in places]
        lines.append((_name(row), *scores, *(times_entry(_time(row, model, store)) for model in MODELS)))
    times = [f"time, {model.label}" for model in MODELS.values()]
    return Table("Test accuracy in %, last epoch", ("method", *map(_title, places), *times), lines)


def _accuracy_table(
    title: str,
    place: Place,
    recipes: Recipes,
    records: Mapping[str, Sequence[Record]],
    compared: Compared,
    store: Store,
) -> Table:
    """The last and the best epoch, its differences, how far the training labels were fitted, and the cost."""
    header = (
        "method",
        "test %, last epoch",
        *DIFFERENCES,
        "test %, best epoch",
        "labels fitted, %",
        "gradients",
        "time",
    )
    lines: list[tuple[Entry, ...]] = []
    for row, recipe in recipes.items():
        names = ("test_accuracy", "test_accuracy_at_best", "train_accuracy")
        last, *others = (mean_entry(numbers(records[row], name)) if records[row] else None for name in names)
        measured = (last, _marked(compared, row, "base"), _marked(compared, LOOK_SAM, row), *others)
        cost = Value(_gradients(row, recipe), digits=2, unit="×")
        time = times_entry(_time(row, place.model, store))
        lines.append((_name(row, recipe.optimizer), *measured, cost, time))
    return Table(title, header, lines)


def _marked(compared: Compared, row: str, other: str) -> str | None:
    """A difference in points, with an asterisk where it is significant; None where it is not compared."""
    if (row, other) not in compared:
        return None
    found, clear = compared[row, other]
    return f"{found.mean:+z.2f}{' *' if clear else ''}"


def _gradients(row: str, recipe: Recipe) -> float:
    """The gradients of a whole run, relative to those of the base."""
    return gradients_per_step(recipe, total_steps(recipe)) * LONGER_ROWS.get(row, 1.0)


def _time(row: str, model: str, store: Store) -> float | None:
    """The training time relative to the base, where it was measured."""
    times = stored_ratios(store, TIMINGS[model])
    if row in LONGER_ROWS:
        return LONGER_ROWS[row]  # the same steps, more of them
    return times[row][1] if row in times else None


def _selected_table(title: str, study: SearchStudy, store: Store) -> Table:
    lines: list[tuple[Entry, ...]] = []
    for row in study.rows():
        recipe, tried = study.tuned(store, row), study.tried(store, row)
        best = Value(tried[0][1]) if tried else None
        lines.append((_name(row, recipe.optimizer), *setting_entries(recipe), best, str(len(tried))))
    return Table(title, ("method", *SETTINGS, "held-out %", "settings tried"), lines)


def _figure(
    title: str, place: Place, recipes: Recipes, records: Mapping[str, Sequence[Record]], store: Store
) -> list[Figure]:
    """Accuracy against measured training time; the rows of a method are joined by a line."""
    rows_of: dict[str, list[str]] = {}
    for row in recipes:
        rows_of.setdefault("base" if row in LONGER_ROWS else parse_row(row).method.name, []).append(row)
    series = []
    for method, rows in rows_of.items():
        times = {row: _time(row, place.model, store) or 0.0 for row in rows if records[row]}
        points = sorted((row for row in times if times[row]), key=lambda row: times[row])
        y, error = mean_series([mean_entry(numbers(records[row], "test_accuracy")) for row in points])
        name = f"{_name(rows[0], recipes['base'].optimizer)}{VARIANTS.get(method, '')}"
        series.append(Series(name, [times[row] for row in points], y, error, method))
    stem = "noise" if recipes["base"].label_noise else "clean"
    axes = "training time relative to the base", "test accuracy, %"
    return [Figure(f"rivals-{place.model}-{stem}", title, *axes, series)] if any(one.x for one in series) else []


# --- sentences ----------------------------------------------------------------------------------------------------


def answers(title: str, place: Place, scores: Scores, compared: Compared, store: Store) -> list[str]:
    """Plain sentences on one model and label-noise setting, by the rule of significance."""
    clear = [
        f"{_words(row)} against {_words(other)} {found.mean:+z.2f}"
        for (row, other), (found, is_clear) in compared.items()
        if is_clear
    ]
    cost = [f"{_words(row)} against {_words(other)} {_gain(row, other, compared)}" for row, other in EQUAL_COST]
    sentences = [
        f"{title}: {'significant: ' + ', '.join(clear) if clear else 'no difference is significant'}.",
        f"{title}: with as many gradients, {' and '.join(cost)}.",
        _kept(title, scores, *compared["sam", "base"]),
    ]
    times = [_time(row, place.model, store) for row in scores]
    return [*sentences, _cheapest(title, scores, place, store)] if None not in times else sentences


def _compared(scores: Scores) -> Compared:
    """Every comparison that is made on one model and label-noise setting: with the base, and of LookSAM with all."""
    rest = [row for row in scores if row != "base"]
    pairs = [*((row, "base") for row in rest), *((LOOK_SAM, row) for row in rest if row != LOOK_SAM)]
    pairs += [pair for pair in EQUAL_COST if pair not in pairs]
    differences = {(row, other): difference(scores[row], scores[other]) for row, other in pairs}
    clear = significant(differences)
    return {pair: (found, clear[pair]) for pair, found in differences.items()}


def headline(everything: Mapping[Place, Scores], compared: Mapping[Place, Compared], store: Store) -> list[str]:
    """Sentences for people in a hurry: the gain with noisy and clean labels, the cheapest, where LookSAM loses."""
    finished = {place: everything[place] for place in compared}
    noisy = [place for place in finished if medium_scale.LABEL_NOISE[place.labels]]
    clean = [place for place in finished if place not in noisy]
    kept = [
        f"{_gain('sam', 'base', compared[place])} on the {MODELS[place.model].label}, of which LookSAM-5 keeps "
        f"{_share(LOOK_SAM, finished[place])} and SAM-5 {_share('sam_5', finished[place])}"
        for place in noisy
    ]
    sentences = [f"With {noisy[0].labels} SAM gains, over the tuned base, {'; '.join(kept)}."] if noisy else []
    gains = [f"{_gain('sam', 'base', compared[place])} on the {MODELS[place.model].label}" for place in clean]
    sentences += [f"With clean labels SAM gains {' and '.join(gains)}."] if gains else []
    cheapest = [f"{_words(_cheapest_row(finished[place], place, store))} ({_title(place)})" for place in finished]
    sentences.append(f"The cheapest within one standard error of the best: {', '.join(cheapest)}.")
    ahead = [
        f"{_words(row)} {-found.mean:+.2f} ({_title(place)})"
        for place, pairs in compared.items()
        for (look, row), (found, clear) in pairs.items()
        if look == LOOK_SAM and row != "base" and clear and found.mean < 0
    ]
    lost = f"is behind {', '.join(ahead)}" if ahead else "is nowhere significantly behind a method it was compared with"
    seeds = len(next(iter(next(iter(finished.values())).values())))
    return [*sentences, f"On the {seeds} seeds of the comparison of all methods, LookSAM-5 {lost}."]


def _title(place: Place) -> str:
    return f"{MODELS[place.model].label}, {place.labels}"


def _gain(row: str, other: str, pairs: Compared) -> str:
    found, clear = pairs[row, other]
    return gain_text(found.mean, clear)


def _share(row: str, scores: Scores) -> str:
    return f"{100 * share_kept(scores['base'], scores['sam'], scores[row]):.0f} %"


def _words(row: str) -> str:
    if row in LONGER_ROWS:
        return f"the base trained {LONGER_ROWS[row]:g} times as long"
    return "the base" if row == "base" else label(row, k=5)


def _kept(title: str, scores: Scores, gain: Difference, clear: bool) -> str:
    if not clear or gain.mean <= 0:
        return f"{title}: SAM has no clear gain here, so there is none to keep."
    parts = [f"{label(row)} keeps {_share(row, scores)} of SAM's gain" for row in (LOOK_SAM, "sam_5")]
    kept = 100 * share_kept(scores["base"], scores["sam"], scores[LOOK_SAM])
    verdict = "at least" if round(kept) >= KEPT else "less than"
    return f"{title}: {' and '.join(parts)}; LookSAM-5 {verdict} our threshold of {KEPT} %."


def _cheapest(title: str, scores: Scores, place: Place, store: Store) -> str:
    best, mean, _ = _best(scores)
    cheapest = _cheapest_row(scores, place, store)
    return (
        f"{title}: {_words(best)} has the highest mean, {mean:.2f} %; the cheapest within one standard error of it is "
        f"{_words(cheapest)}, at {_time(cheapest, place.model, store):.2f} times the training time of the base."
    )


def _best(scores: Scores) -> tuple[str, float, float]:
    """The row with the highest mean, with that mean and its standard error."""
    row = max(scores, key=lambda row: float(np.mean(scores[row])))
    mean, error = mean_and_standard_error(scores[row])
    return row, float(mean), float(error)


def _cheapest_row(scores: Scores, place: Place, store: Store) -> str:
    """The cheapest method whose mean is within one standard error of the best, where all are timed."""
    _, mean, error = _best(scores)
    good = [row for row in scores if np.mean(scores[row]) >= mean - error]
    return min(good, key=lambda row: _time(row, place.model, store) or 0.0)


def notes(seeds: int) -> list[str]:
    """How the methods were tuned and compared."""
    return [
        RULE,
        how_tuned(seeds),
        "Differences are of the last epoch, in points; an asterisk marks a significant one.",
        "The best epoch is that of ten with the highest accuracy on held-out images; the test set selects nothing. "
        "Labels fitted are the training labels as given, random ones included.",
        "Gradients and time are of a whole run, relative to the base; time is measured in interleaved steps.",
    ]


def how_tuned(seeds: int) -> str:
    """The images of this scale, and the search in words."""
    images = medium_scale.IMAGES
    return (
        f"{images['train_limit']:,} training images of {images['classes']} classes of CIFAR-100 at "
        f"{images['image_size']}² pixels, no augmentation, {medium_scale.RESNET.epochs} epochs on the ResNet and "
        f"{medium_scale.VIT.epochs} on the ViT, {seeds} seeds; ± is one standard error. Each method is tuned on "
        f"held-out images, in runs of the same length (with clean labels of half of it): {HOW}"
    )


RIVALS = Experiment(
    name="rivals",
    title="The rivals at their own best settings",
    question="Which method is worth its cost: the base trained longer, SAM, LookSAM, or one of their rivals?",
    stages=stages,
    findings=findings,
    timings=tuple(TIMINGS.values()),
    in_parts=has_a_finished_setting,
)
