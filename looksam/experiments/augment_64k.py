"""Table "RandAug and Mixup": the largest batches, with and without augmentation."""

import itertools
from collections.abc import Iterator

from looksam.experiments import lamb
from looksam.experiments.entries import printed, spread
from looksam.experiments.report.document import Entry, Section, Table
from looksam.experiments.significance import RULE, difference, significant
from looksam.experiments.store import Store
from looksam.experiments.study import accuracies
from looksam.experiments.task import Task
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import imagenet as full
from looksam.trainer.recipes import paper_tables as paper

NAME = "augment-64k"
TITLE = "The largest batches with RandAugment and Mixup"
QUESTION = "Does augmentation still add to Look-LayerSAM at the largest batch?"
FULL = (
    *(f"vit_b16-lamb-{batch}-{method}" for batch in full.AUGMENTED_BATCHES for method in ("base", "look_layer_sam")),
    *full.AUGMENTED_RECIPES,
)
BATCHES = {50: 32768, 400: 65536}  # of ours, with the paper's that they stand for
RANDAUGMENT = full.AUGMENTATIONS["randaugment"]
ROWS = {
    "LAMB": ("base", {}, {"method": "lamb", "randaug": "no", "mixup": "no"}),
    "+ Look-LayerSAM-5": (lamb.LAYER, {}, {"method": "lamb+look_layer_sam", "randaug": "no", "mixup": "no"}),
    "+ RandAugment": (lamb.LAYER, RANDAUGMENT, {"method": "lamb+look_layer_sam", "randaug": "yes", "mixup": "no"}),
    "+ Mixup": (
        lamb.LAYER,
        full.AUGMENTATIONS["randaugment-mixup"],
        {"method": "lamb+look_layer_sam", "randaug": "yes", "mixup": "yes"},
    ),
}


def recipes(store: Store) -> dict[tuple[str, int], dict[str, Recipe]]:
    return {
        where: {row: study.tuned(store, method, **extra) for row, (method, extra, _) in ROWS.items()}
        for where, study in lamb.studies(tuple(BATCHES)).items()
    }


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    yield from lamb.tuning(store, tuple(BATCHES), ("base", lamb.LAYER))
    yield lamb.reported([recipe for rows in recipes(store).values() for recipe in rows.values()], seeds)


def section(store: Store, seeds: int) -> Section:
    cells = recipes(store)
    scores = {where: {row: accuracies(store, r, seeds) for row, r in rows.items()} for where, rows in cells.items()}
    header = (
        "",
        *(f"{column}, batch {batch}" for column, batch in cells),
        *(f"paper: {b:,}" for b in BATCHES.values()),
    )
    lines: list[tuple[Entry, ...]] = []
    for row, (_, _, where) in ROWS.items():
        theirs = [paper.number("augment_64k", str(batch), **where) for batch in BATCHES.values()]
        numbers = [printed(number) for number in theirs]
        lines.append((row, *(spread(here[row]) for here in scores.values()), *numbers))
    epochs = next(iter(cells.values()))["LAMB"].epochs
    return Section(
        NAME,
        TITLE,
        QUESTION,
        [_answer(f"{column}, batch {batch}", scores[column, batch]) for column, batch in cells],
        [Table("Test accuracy in %, small ViT; each row adds to the one above", header, lines)],
        (),
        [
            "RandAugment with 2 operations of magnitude 10 and Mixup of 0.2, as in the full recipes; ρ, α and rate are "
            f"those tuned without augmentation, and the {epochs} epochs are the same.",
            RULE,
        ],
    )


def _answer(where: str, scores: dict[str, list[float]]) -> str:
    rows = list(ROWS)
    found = {row: difference(scores[row], scores[before]) for before, row in itertools.pairwise(rows)}
    clear = significant(found)
    parts = [f"{row[2:]} {found[row].mean:+.2f}{'' if clear[row] else ' (not significant)'}" for row in found]
    return f"{where}: each against the row above it: {'; '.join(parts)}."
