"""Table "Large-batch training accuracy": does Look-LayerSAM hold up as the batch grows at fixed epochs?"""

from collections.abc import Iterator, Mapping, Sequence

from looksam.arguments import SCALINGS
from looksam.experiments import claims
from looksam.experiments.engine.reported import accuracies, reported_runs
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.search import tuning_stages
from looksam.experiments.engine.statistics import difference, gain_text, significant
from looksam.experiments.experiment import (
    SETTINGS,
    Experiment,
    Findings,
    mean_entry,
    mean_series,
    paper_entry,
    setting_entries,
)
from looksam.experiments.report.document import Claim, Entry, Figure, Series, Table
from looksam.experiments.sam_comparison import notes
from looksam.experiments.small_scale import LABEL_NOISE, LAMB_BATCHES, LAMB_STARTS, LAYER, lamb_studies
from looksam.methods import label, parse_row
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes.paper_tables import paper_row

PAPER_BATCHES = (4096, 8192, 16384, 32768)
PAPER_METHODS = ("base", "sam", "look_sam", "look_layer_sam")
ROWS = tuple(LAMB_STARTS)

Place = tuple[str, int]  # label-noise setting and batch
Scores = Mapping[Place, Mapping[str, Sequence[float]]]  # then row: the accuracy of each seed


def recipes(store: Store) -> dict[Place, dict[str, Recipe]]:
    """By label-noise setting and batch, then by row."""
    return {place: {row: study.tuned(store, row) for row in ROWS} for place, study in lamb_studies().items()}


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    yield from tuning_stages(lamb_studies().values(), store, ROWS)
    yield reported_runs([recipe for rows in recipes(store).values() for recipe in rows.values()], seeds)


def findings(store: Store, seeds: int) -> Findings:
    trained = recipes(store)
    scores = {
        place: {row: accuracies(store, recipe, seeds) for row, recipe in rows.items()}
        for place, rows in trained.items()
    }
    return Findings(
        [*(sentence for labels in LABEL_NOISE for sentence in _answers(labels, scores)), _decision(scores)],
        [*(_table(labels, scores) for labels in LABEL_NOISE), _selected(trained)],
        [_figure(labels, scores) for labels in LABEL_NOISE],
        [
            "Small ViT on 1,200 images of 20 classes of CIFAR-100, the same epochs at every batch, so "
            f"{LAMB_BATCHES[-1] // LAMB_BATCHES[0]} times fewer steps at the largest.",
            *notes(seeds),
        ],
        [_claim(scores)],
    )


def _claim(scores: Scores) -> Claim:
    largest = {
        labels: {
            row: values for row, values in scores[labels, LAMB_BATCHES[-1]].items() if row in (*PAPER_METHODS, LAYER)
        }
        for labels in LABEL_NOISE
    }
    return claims.is_best("Look-LayerSAM is the most accurate at the largest batch", largest, LAYER, "Look-LayerSAM-5")


def _name(row: str) -> str:
    return "LAMB" if row == "base" else f"LAMB + {label(row, k=5)}"


def _table(labels: str, scores: Scores) -> Table:
    ours, theirs = [f"batch {b}" for b in LAMB_BATCHES], [f"paper: {b:,}" for b in PAPER_BATCHES]
    rows: list[tuple[Entry, ...]] = []
    for row in ROWS:
        means = [mean_entry(scores[labels, batch][row]) for batch in LAMB_BATCHES]
        rows.append((_name(row), *means, *(_paper(row, batch) for batch in PAPER_BATCHES)))
    return Table(f"Test accuracy in %, {labels}", ("method", *ours, *theirs), rows)


def _paper(row: str, batch: int) -> Entry:
    """The paper's scaling of the layers is taken to be the default one."""
    if row not in (*PAPER_METHODS, LAYER):
        return None
    return paper_entry("large_batch", str(batch), method=paper_row(row, "lamb"))


def _selected(trained: Mapping[Place, Mapping[str, Recipe]]) -> Table:
    rows: list[tuple[Entry, ...]] = []
    for (labels, batch), recipes_here in trained.items():
        for row, recipe in recipes_here.items():
            rows.append((labels, str(batch), _name(row), *setting_entries(recipe)))
    return Table("Selected hyper-parameters", ("labels", "batch", "method", *SETTINGS), rows)


def _figure(labels: str, scores: Scores) -> Figure:
    series = []
    for i, row in enumerate(ROWS):
        y, error = mean_series([mean_entry(scores[labels, batch][row]) for batch in LAMB_BATCHES])
        scaling = parse_row(row).scaling
        style = i - 2 if scaling and row != LAYER else parse_row(row).method.name  # other scalings by number
        series.append(Series(_name(row), LAMB_BATCHES, y, error, style))
    stem = "noise" if LABEL_NOISE[labels] else "clean"
    return Figure(f"large-batch-{stem}", f"Small ViT, LAMB, {labels}", "batch", "test accuracy, %", series, log_x=True)


def _compared(here: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], tuple[float, bool]]:
    """Every comparison made at one place: the difference of the two means, and whether it is significant."""
    pairs = [(row, "base") for row in ROWS[1:]]
    pairs += [(f"look_layer_sam:{scaling}", LAYER) for scaling in SCALINGS[1:]]
    differences = {(a, b): difference(here[a], here[b]) for a, b in pairs}
    return {pair: (differences[pair].mean, clear) for pair, clear in significant(differences).items()}


def _answers(labels: str, scores: Scores) -> list[str]:
    sentences = []
    for batch in LAMB_BATCHES:
        parts = [
            f"{_name(row)} {gain_text(mean, clear)}"
            for (row, other), (mean, clear) in _compared(scores[labels, batch]).items()
            if other == "base"
        ]
        sentences.append(f"{labels}, batch {batch}: against LAMB alone, {'; '.join(parts)}.")
    return sentences


def _decision(scores: Scores) -> str:
    """Which layer scaling is best where, and which differ significantly from the default."""
    wins = dict.fromkeys(SCALINGS, 0)
    apart: list[str] = []
    for (labels, batch), here in scores.items():
        sums = {scaling: float(sum(here[f"look_layer_sam:{scaling}"])) for scaling in SCALINGS}
        wins[max(sums, key=lambda scaling: sums[scaling])] += 1
        for (row, other), (mean, clear) in _compared(here).items():
            if other == LAYER and clear:
                sign, scaling = "above" if mean > 0 else "below", parse_row(row).scaling
                apart.append(f"{scaling} is {abs(mean):.2f} {sign} normalized at batch {batch}, {labels}")
    counted = ", ".join(f"{name} {count}" for name, count in wins.items())
    verdict = "; ".join(apart) if apart else "none differs significantly from the normalized reading anywhere"
    return f"Layer scalings, by how often each has the best mean in the {len(scores)} settings: {counted}; {verdict}."


LARGE_BATCH = Experiment(
    name="large-batch",
    title="Large batches",
    question=(
        "Does Look-LayerSAM hold up as the batch grows at fixed epochs, and which layer scaling should be the default?"
    ),
    stages=stages,
    findings=findings,
    full=tuple(f"vit_b16-lamb-{batch}-{method}" for batch in PAPER_BATCHES for method in PAPER_METHODS),
)
