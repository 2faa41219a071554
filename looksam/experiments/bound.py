"""Appendix theorem: the PAC-Bayes bound as a number, for the desk models."""

from collections.abc import Iterator

import numpy as np

from looksam.analysis import pac_bayes_bound
from looksam.compare.sweep import SHARPNESS_RHO
from looksam.experiments import cifar100, variants, vit
from looksam.experiments.naming import display
from looksam.experiments.store import Store
from looksam.experiments.study import Study, found
from looksam.experiments.task import Task
from looksam.report.section import Entry, Section, Table, Value
from looksam.train.recipe import Recipe

NAME = "bound"
TITLE = "The PAC-Bayes bound as a number"
QUESTION = "What does the theorem of the appendix say about the desk models?"
FULL = ()
ROWS = ("base", "sam", "sam_5", "look_sam_5")
DELTA = 0.05


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    for parts in zip(vit.stages(store, seeds), cifar100.stages(store, seeds), strict=True):
        yield [task for part in parts for task in part]


def _studies() -> dict[tuple[str, str], Study]:
    models = {"ViT": vit.studies(), "ResNet": cifar100.studies()}
    return {(model, column): study for model, columns in models.items() for column, study in columns.items()}


def section(store: Store, seeds: int) -> Section:
    terms = ("bound", "worst loss", "slack", "weights", "confidence", "constant")
    header = ("model", "column", "method", *terms, "‖w‖", "parameters")
    lines: list[tuple[Entry, ...]] = []
    for (model, column), study in _studies().items():
        recipes = variants.rows(study, store)
        for row in ROWS:
            lines.append((model, column, display(row, recipes[row].optimizer), *_bound(recipes[row], store, seeds)))
    slacks = [entry.value for line in lines if isinstance(entry := line[5], Value)]
    return Section(
        NAME,
        TITLE,
        QUESTION,
        [
            f"Nothing: the slack alone is {min(slacks):.1f} to {max(slacks):.1f}, and a loss between 0 and 1 is never "
            "above 1. With tens of parameters for each training image the term of the weights rules all others.",
        ],
        [Table(f"δ = {DELTA}, ρ = {SHARPNESS_RHO}, ρ₀ = 0; means over {seeds} seeds", header, lines)],
        (),
        [
            "bound = worst loss + slack, slack = √((weights + confidence + constant) / (n − 1)), with 8 log(6n + 3d) "
            "for the constant. Worst loss is the training loss one ascent step of ρ away, at most the ball's maximum.",
            "The theorem is for a loss between 0 and 1; the cross-entropy stands in its place here. The paper prints "
            "no number.",
        ],
    )


def _bound(recipe: Recipe, store: Store, seeds: int) -> list[Entry]:
    records = found(store, recipe, seeds)
    bounds = [
        pac_bayes_bound(
            recipe.train_limit or 0,
            int(record["parameters"]),
            record["weight_norm"],
            SHARPNESS_RHO,
            delta=DELTA,
            worst_loss=max(0.0, record["train_loss_at_end"] + record["sharpness_train"]),
        )
        for record in records
    ]
    terms = [Value(float(np.mean([term[i] for term in bounds])), digits=2 if i < 3 else 0) for i in range(6)]
    norm = Value(float(np.mean([record["weight_norm"] for record in records])), digits=1)
    return [*terms, norm, f"{int(records[0]['parameters']):,}"]
