"""The rivals: every method at its own best settings, accuracy against cost, on two models, clean and noisy labels."""

from collections.abc import Iterator, Mapping, Sequence

from looksam.experiments import medium_scale
from looksam.experiments.engine.runs import Record, Run, Store
from looksam.experiments.engine.search import BUDGET, SearchStudy, finished_records, search_stages
from looksam.experiments.engine.statistics import (
    RULE,
    Difference,
    difference,
    mean_and_standard_error,
    share_kept,
    significant,
)
from looksam.experiments.engine.timer import stored_ratios
from looksam.experiments.experiment import Experiment, Findings, mean_entry, setting_entry, times_entry
from looksam.experiments.medium_scale import MODELS, TIMINGS, Place
from looksam.experiments.report.document import Entry, Figure, Series, Table, Value
from looksam.experiments.sam_comparison import KEPT, numbers
from looksam.methods import label, parse_row
from looksam.trainer.recipe import Recipe
from looksam.trainer.rule_settings import gradients_per_step
from looksam.trainer.training import total_steps

LONGER_ROWS = next(iter(medium_scale.studies().values())).longer_rows()
# Beyond the base, against which every row is compared: LookSAM against what it should match or beat, and what costs
# the same as LookSAM or SAM against it.
PAIRS = (
    *(("look_sam_5", other) for other in ("sam", "sam_5", "look_layer_sam", "msam", "base ×1.2")),
    ("sam", "base ×2"),
)

Recipes = Mapping[str, Recipe]  # by row
Scores = Mapping[str, Sequence[float]]  # by row: the accuracy of each seed


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    return search_stages(medium_scale.studies().values(), store, seeds)


def findings(store: Store, seeds: int) -> Findings:
    """The report; of runs that are not finished yet, it leaves out what depends on them."""
    sentences, tables, figures = [], [], []
    for place, study in medium_scale.studies().items():
        recipes = study.reported(store)
        records = {row: finished_records(store, recipe, seeds) for row, recipe in recipes.items()}
        title = f"{MODELS[place.model].label}, {place.labels}"
        sentences += answers(title, place, records, store, seeds)
        tables.append(_accuracy_table(title, place, recipes, records, store))
        tables.append(_selected_table(f"{title}: selected hyper-parameters", study, store))
        figures += _figure(title, place, recipes, records, store)
    return Findings(sentences, tables, figures, notes(seeds))


def _name(row: str, recipe: Recipe) -> str:
    if row in LONGER_ROWS:
        return f"{label('base', recipe.optimizer)}, {LONGER_ROWS[row]:g} × the epochs"
    return label(row, recipe.optimizer, k=5)


# --- tables and figures -------------------------------------------------------------------------------------------


def _accuracy_table(
    title: str, place: Place, recipes: Recipes, records: Mapping[str, Sequence[Record]], store: Store
) -> Table:
    """The last and the best epoch, how far the training labels were fitted, and what a method costs."""
    header = ("method", "test %, last epoch", "test %, best epoch", "training labels fitted, %", "gradients", "time")
    lines: list[tuple[Entry, ...]] = []
    for row, recipe in recipes.items():
        names = ("test_accuracy", "test_accuracy_at_best", "train_accuracy")
        measured = [mean_entry(numbers(records[row], name)) if records[row] else None for name in names]
        cost = Value(_gradients(row, recipe), digits=2, unit="×")
        lines.append((_name(row, recipe), *measured, cost, times_entry(_time(row, place, store))))
    return Table(title, header, lines)


def _gradients(row: str, recipe: Recipe) -> float:
    """The gradients of a whole run, relative to those of the base."""
    return gradients_per_step(recipe, total_steps(recipe)) * LONGER_ROWS.get(row, 1.0)


def _time(row: str, place: Place, store: Store) -> float | None:
    """The training time relative to the base, where it was measured."""
    times = stored_ratios(store, TIMINGS[place.model])
    if row in LONGER_ROWS:
        return LONGER_ROWS[row]  # the same steps, more of them
    return times[row][1] if row in times else None


def _selected_table(title: str, study: SearchStudy, store: Store) -> Table:
    lines: list[tuple[Entry, ...]] = []
    for row in study.starts:
        recipe, tried = study.tuned(store, row), study.tried(store, row)
        settings = f"{recipe.learning_rate:g}", setting_entry(recipe, "rho"), setting_entry(recipe, "alpha")
        best = Value(tried[0][1]) if tried else None
        lines.append((_name(row, recipe), *settings, best, str(len(tried))))
    return Table(title, ("method", "learning rate", "ρ", "α", "held-out %", "settings tried"), lines)


def _figure(
    title: str, place: Place, recipes: Recipes, records: Mapping[str, Sequence[Record]], store: Store
) -> list[Figure]:
    """Accuracy against measured training time."""
    series = []
    for row, recipe in recipes.items():
        time = _time(row, place, store)
        if time is not None and records[row]:
            entry = mean_entry(numbers(records[row], "test_accuracy"))
            style = "base" if row in LONGER_ROWS else parse_row(row).method.name
            series.append(Series(_name(row, recipe), [time], [entry.value], [entry.error or 0.0], style, line=False))
    stem = "noise" if recipes["base"].label_noise else "clean"
    axes = "training time relative to the base", "test accuracy, %"
    return [Figure(f"rivals-{place.model}-{stem}", title, *axes, series)] if series else []


# --- sentences ----------------------------------------------------------------------------------------------------


def answers(title: str, place: Place, records: Mapping[str, Sequence[Record]], store: Store, seeds: int) -> list[str]:
    """Plain sentences on one model and label-noise setting, by the rule of significance."""
    finished, wanted = sum(map(len, records.values())), seeds * len(records)
    if finished < wanted:
        return [f"{title}: {finished} of {wanted} runs are finished."]
    scores = {row: numbers(found, "test_accuracy") for row, found in records.items()}
    pairs = [*((row, "base") for row in scores if row != "base"), *PAIRS]
    differences = {pair: difference(scores[pair[0]], scores[pair[1]]) for pair in pairs}
    clear = significant(differences)
    against = {
        other: ", ".join(
            f"{_words(row)} {differences[row, other].mean:+.2f}{'' if clear[row, other] else ' (not significant)'}"
            for row, second in pairs
            if second == other
        )
        for other in dict.fromkeys(other for _, other in pairs)
    }
    sentences = [f"{title}: against the base, {against.pop('base')}."]
    sentences += [f"{title}: against {_words(other)}, {text}." for other, text in against.items()]
    sentences.append(_kept(title, scores, differences["sam", "base"], clear["sam", "base"]))
    times = {row: _time(row, place, store) for row in scores}
    known = {row: time for row, time in times.items() if time is not None}
    return [*sentences, _cheapest(title, scores, known)] if len(known) == len(times) else sentences


def _words(row: str) -> str:
    return f"the base trained {LONGER_ROWS[row]:g} times as long" if row in LONGER_ROWS else label(row, k=5)


def _kept(title: str, scores: Scores, gain: Difference, clear: bool) -> str:
    if not clear or gain.mean <= 0:
        return f"{title}: SAM has no clear gain here, so there is none to keep."
    kept = {row: 100 * share_kept(scores["base"], scores["sam"], scores[row]) for row in ("look_sam_5", "sam_5")}
    parts = [f"{label(row)} keeps {share:.0f} % of SAM's gain" for row, share in kept.items()]
    verdict = "at least" if round(kept["look_sam_5"]) >= KEPT else "less than"
    return f"{title}: {' and '.join(parts)}; LookSAM-5 {verdict} our threshold of {KEPT} %."


def _cheapest(title: str, scores: Scores, times: Mapping[str, float]) -> str:
    """The cheapest method whose mean is within one standard error of the best."""
    means = {row: float(mean_and_standard_error(values)[0]) for row, values in scores.items()}
    best = max(means, key=lambda row: means[row])
    error = float(mean_and_standard_error(scores[best])[1])
    good = [row for row in scores if means[row] >= means[best] - error]
    cheapest = min(good, key=lambda row: times[row])
    return (
        f"{title}: {_words(best)} has the highest mean, {means[best]:.2f} %; the cheapest within one standard error of "
        f"it is {_words(cheapest)}, at {times[cheapest]:.2f} times the training time of the base."
    )


def notes(seeds: int) -> list[str]:
    """How the methods were tuned and compared."""
    return [
        RULE,
        how_tuned(seeds),
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
        "held-out images, in runs of the same length: one setting after another by factors of 2, each until "
        f"its best value is inside what was tried, then by factors of √2 until about {BUDGET} settings have been "
        "tried. The base tunes its learning rate and its weight decay; the others keep that weight decay, and tune "
        "the learning rate, ρ, and α where they have one."
    )


RIVALS = Experiment(
    name="rivals",
    title="The rivals at their own best settings",
    question="Which method is worth its cost: the base trained longer, SAM, LookSAM, or one of their rivals?",
    stages=stages,
    findings=findings,
    timings=tuple(TIMINGS.values()),
)
