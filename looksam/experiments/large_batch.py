"""Table "Large-batch training accuracy": does Look-LayerSAM hold up as the batch grows at fixed epochs?"""

from collections.abc import Iterator, Mapping, Sequence

from looksam.experiments import lamb
from looksam.experiments.against_sam import notes
from looksam.experiments.entries import printed, spread
from looksam.experiments.naming import display, style
from looksam.experiments.report.document import Entry, Figure, Section, Series, Table
from looksam.experiments.significance import difference, significant
from looksam.experiments.store import Store
from looksam.experiments.study import accuracies
from looksam.experiments.task import Task
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import imagenet as full
from looksam.trainer.recipes import paper_tables as paper

NAME = "large-batch"
TITLE = "Large batches"
QUESTION = (
    "Does Look-LayerSAM hold up as the batch grows at fixed epochs, and which layer scaling should be the default?"
)
FULL = tuple(name for name in full.LARGE_BATCH_RECIPES if "65536" not in name and not name.endswith("-layer_sam"))
ROWS = {
    "base": "lamb",
    "sam": "lamb+sam",
    "look_sam": "lamb+look_sam",
    lamb.LAYER: "lamb+look_layer_sam",
}  # the paper's

Recipes = dict[tuple[str, int], dict[str, Recipe]]  # by column and batch, then by method


def recipes(store: Store) -> Recipes:
    return {
        where: {method: study.tuned(store, method) for method in lamb.METHODS}
        for where, study in lamb.studies().items()
    }


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    yield from lamb.tuning(store, lamb.BATCHES, lamb.METHODS)
    yield lamb.reported([recipe for rows in recipes(store).values() for recipe in rows.values()], seeds)


def section(store: Store, seeds: int) -> Section:
    cells = recipes(store)
    scores = {where: {m: accuracies(store, r, seeds) for m, r in rows.items()} for where, rows in cells.items()}
    columns = list(dict.fromkeys(column for column, _ in cells))
    return Section(
        NAME,
        TITLE,
        QUESTION,
        [*(line for column in columns for line in _answers(column, scores)), _decision(scores)],
        [*(_table(column, scores) for column in columns), _picks(cells)],
        [_figure(column, scores) for column in columns],
        [
            "Small ViT on 1,200 images of 20 classes of CIFAR-100, the same epochs at every batch, so "
            f"{lamb.BATCHES[-1] // lamb.BATCHES[0]} times fewer steps at the largest.",
            *notes(lamb.studies()[columns[0], lamb.BATCHES[0]], seeds),
        ],
    )


Scores = Mapping[tuple[str, int], Mapping[str, Sequence[float]]]


def _name(method: str) -> str:
    return {"base": "LAMB", "sam": "LAMB + SAM", "look_sam": "LAMB + LookSAM-5"}.get(
        method
    ) or f"LAMB + {display(method)}"


def _table(column: str, scores: Scores) -> Table:
    batches = full.LARGE_BATCH_SETTINGS.keys() - {65536}
    header = ("method", *(f"batch {b}" for b in lamb.BATCHES), *(f"paper: {b:,}" for b in sorted(batches)))
    rows: list[tuple[Entry, ...]] = []
    for method in lamb.METHODS:
        ours = [spread(scores[column, batch][method]) for batch in lamb.BATCHES]
        theirs = [_paper(method, batch) for batch in sorted(batches)]
        rows.append((_name(method), *ours, *theirs))
    return Table(f"Test accuracy in %, {column}", header, rows)


def _paper(method: str, batch: int) -> Entry:
    number = paper.number("large_batch", str(batch), method=ROWS[method]) if method in ROWS else None
    return printed(number)


def _picks(cells: Recipes) -> Table:
    header = ("column", "batch", "method", "rate", "ρ", "α")
    rows: list[tuple[Entry, ...]] = []
    for (column, batch), methods in cells.items():
        for method, recipe in methods.items():
            rho = f"{recipe.rho:g}" if method != "base" else None
            alpha = f"{recipe.alpha:g}" if method.startswith("look") else None
            rows.append((column, str(batch), _name(method), f"{recipe.learning_rate:g}", rho, alpha))
    return Table("What was picked", header, rows)


def _figure(column: str, scores: Scores) -> Figure:
    series = []
    for i, method in enumerate(lamb.METHODS):
        values = [spread(scores[column, batch][method]) for batch in lamb.BATCHES]
        look = i - 2 if method.startswith("look_layer") else 0
        y, error = [v.value for v in values], [v.error or 0.0 for v in values]
        series.append(Series(_name(method), lamb.BATCHES, y, error, style(method) if look < 2 else look))
    stem = "noise" if "random" in column else "clean"
    return Figure(f"large-batch-{stem}", f"Small ViT, LAMB, {column}", "batch", "test accuracy, %", series, log_x=True)


def _compared(here: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], tuple[float, bool]]:
    """Every comparison made in one column of a table: the difference of the two means, and is it significant?"""
    pairs = [(method, "base") for method in lamb.METHODS[1:]]
    pairs += [(f"look_layer_sam:{scaling}", lamb.LAYER) for scaling in lamb.SCALINGS[1:]]
    found = {(a, b): difference(here[a], here[b]) for a, b in pairs}
    return {pair: (found[pair].mean, clear) for pair, clear in significant(found).items()}


def _answers(column: str, scores: Scores) -> list[str]:
    sentences = []
    for batch in lamb.BATCHES:
        found = _compared(scores[column, batch])
        parts = [
            f"{_name(method)} {mean:+.2f}{'' if clear else ' (not significant)'}"
            for (method, other), (mean, clear) in found.items()
            if other == "base"
        ]
        sentences.append(f"{column}, batch {batch}: against LAMB alone, {'; '.join(parts)}.")
    return sentences


def _decision(scores: Scores) -> str:
    """Which scaling is best where, and which differ significantly from the default."""
    wins = dict.fromkeys(lamb.SCALINGS, 0)
    apart: list[str] = []
    for (column, batch), here in scores.items():
        means = {s: float(sum(here[f"look_layer_sam:{s}"])) for s in lamb.SCALINGS}
        best = max(means, key=lambda s: means[s])
        wins[best] += 1
        for (method, other), (mean, clear) in _compared(here).items():
            if other == lamb.LAYER and clear:
                sign, scaling = "above" if mean > 0 else "below", method.partition(":")[2]
                apart.append(f"{scaling} is {abs(mean):.2f} {sign} normalized at batch {batch}, {column}")
    counted = ", ".join(f"{name} {count}" for name, count in wins.items())
    verdict = "; ".join(apart) if apart else "none differs significantly from the normalized reading anywhere"
    return f"Layer scalings: best mean in so many of {len(scores)} cells: {counted}; {verdict}."
