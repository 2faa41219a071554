"""Figure "Accuracy of SAM-5, SAM and vanilla ViT": accuracy over epochs."""

from collections.abc import Iterator

import numpy as np

from looksam.experiments import against_sam, vit
from looksam.experiments.compare.sweep import curve_epochs
from looksam.experiments.entries import printed, spread
from looksam.experiments.naming import display
from looksam.experiments.report.document import Entry, Section, Table
from looksam.experiments.significance import RULE, difference, significant
from looksam.experiments.store import Store
from looksam.experiments.study import found
from looksam.experiments.task import Task
from looksam.experiments.variants import rows
from looksam.experiments.work import CURVE_POINTS
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables as paper

NAME = "sam5-gap"
TITLE = "The gap between SAM-5 and SAM"
QUESTION = "Taking the second gradient every fifth step alone, how much of SAM is lost, and when in training?"
FULL = ("vit_b16-base", "vit_b16-sam", "vit_b16-sam_k-5", "vit_b16-look_sam-5")
CURVES = against_sam.CURVES
PLACES = (2, 5, -1)  # of the points of a curve, at which the two are compared


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    return vit.stages(store, seeds)


def section(store: Store, seeds: int) -> Section:
    columns = {column: rows(study, store) for column, study in vit.studies().items()}
    return Section(
        NAME,
        TITLE,
        QUESTION,
        [_answer(column, recipes, store, seeds) for column, recipes in columns.items()],
        [_table(column, recipes, store, seeds) for column, recipes in columns.items()],
        [
            against_sam.curves(f"sam5-gap-{i}", f"Small ViT, AdamW, {column}", recipes, store, seeds)
            for i, (column, recipes) in enumerate(columns.items())
        ],
        ["Learning curves are on the held-out images; the cells are those of `vit`.", RULE],
    )


def _curve(recipe: Recipe, store: Store, seeds: int) -> np.ndarray:
    """(seeds, points)."""
    return np.array([record["validation_accuracy"] for record in found(store, recipe, seeds)])


def _table(column: str, recipes: dict[str, Recipe], store: Store, seeds: int) -> Table:
    epochs = curve_epochs(recipes["base"].epochs, CURVE_POINTS)
    header = ("method", *(f"epoch {epoch}" for epoch in epochs), "paper: ViT-B-16 at the end")
    lines: list[tuple[Entry, ...]] = []
    for row in CURVES:
        values = _curve(recipes[row], store, seeds)
        number = paper.number("vit", "top1", model="vit_b16", method={"base": "adamw"}.get(row, row))
        lines.append(
            (display(row, "adamw"), *(spread(values[:, i].tolist(), 1) for i in range(len(epochs))), printed(number))
        )
    return Table(f"Accuracy in % on held-out images, {column}", header, lines)


def _answer(column: str, recipes: dict[str, Recipe], store: Store, seeds: int) -> str:
    """SAM minus SAM-5, early, late and at the end."""
    sam, sam_5 = (_curve(recipes[row], store, seeds) for row in ("sam", "sam_5"))
    epochs = curve_epochs(recipes["sam"].epochs, CURVE_POINTS)
    gaps = {epochs[i]: difference(sam[:, i].tolist(), sam_5[:, i].tolist()) for i in PLACES}
    clear = significant(gaps)
    parts = [f"{gap.mean:+.2f} at epoch {at}{'' if clear[at] else ' (not significant)'}" for at, gap in gaps.items()]
    return f"{column}: SAM minus SAM-5, in points on held-out images: {', '.join(parts)}."
