"""Appendix theorem: the PAC-Bayes bound as a number, for the desk models."""

from collections.abc import Iterator

import numpy as np

from looksam.analysis import pac_bayes_bound
from looksam.experiments import cifar100, variants, vit
from looksam.experiments.compare.run import parameter_count
from looksam.experiments.compare.sweep import SHARPNESS_RHO
from looksam.experiments.naming import display
from looksam.experiments.report.document import Entry, Section, Table, Value
from looksam.experiments.store import Store
from looksam.experiments.study import Study, found
from looksam.experiments.task import Task
from looksam.trainer.data import Dataset, Images
from looksam.trainer.recipe import Recipe

NAME = "bound"
TITLE = "The PAC-Bayes bound as a number"
QUESTION = "What does the theorem of the appendix say about the desk models?"
FULL = ()
ROWS = ("base", "sam", "sam_5", "look_sam_5")
DELTA = 0.05
MEASURED = ("weight_norm", "train_loss_at_end", "sharpness_train")


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    for parts in zip(vit.stages(store, seeds), cifar100.stages(store, seeds), strict=True):
        yield [task for part in parts for task in part]


def _studies() -> dict[tuple[str, str], Study]:
    models = {"ViT": vit.studies(), "ResNet": cifar100.studies()}
    return {(model, column): study for model, columns in models.items() for column, study in columns.items()}


def section(store: Store, seeds: int) -> Section:
    names = ("bound", "worst loss", "slack", "weights", "confidence", "constant")
    header = ("model", "column", "method", *names, "‖w‖", "parameters")
    lines: list[tuple[Entry, ...]] = []
    for (model, column), study in _studies().items():
        recipes, parameters = variants.rows(study, store), _parameters(study.recipe)
        for row in ROWS:
            terms = _bound(recipes[row], parameters, store, seeds)
            lines.append((model, column, display(row, recipes[row].optimizer), *terms))
    slacks = [entry.value for line in lines if isinstance(entry := line[5], Value)]
    apart = f"{min(slacks):.1f} to {max(slacks):.1f}" if slacks else "not finite"
    return Section(
        NAME,
        TITLE,
        QUESTION,
        [
            f"{'Something' if slacks and min(slacks) < 1 else 'Nothing'}: the slack alone is {apart}, and a loss "
            "between 0 and 1 is never above 1. With tens of parameters for each training image the term of the weights "
            "rules all others.",
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


def _bound(recipe: Recipe, parameters: int, store: Store, seeds: int) -> list[Entry]:
    records = found(store, recipe, seeds)
    if any(record[name] is None for record in records for name in MEASURED):  # a run that was lost has no bound
        return [*[None] * 7, f"{parameters:,}"]
    bounds = [
        pac_bayes_bound(
            recipe.train_limit or 0,
            parameters,
            record["weight_norm"],
            SHARPNESS_RHO,
            delta=DELTA,
            worst_loss=max(0.0, record["train_loss_at_end"] + record["sharpness_train"]),
        )
        for record in records
    ]
    terms = [Value(float(np.mean([term[i] for term in bounds])), digits=2 if i < 3 else 0) for i in range(6)]
    norm = Value(float(np.mean([record["weight_norm"] for record in records])), digits=1)
    return [*terms, norm, f"{parameters:,}"]


def _parameters(recipe: Recipe) -> int:
    """Counted, since what is stored with a run is rounded to a few digits."""
    shape = (recipe.image_size or 32, recipe.image_size or 32, 3)
    none = Images(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32))
    half = (0.5,) * 3
    return parameter_count(recipe, Dataset(recipe.dataset, none, none, recipe.classes or 100, shape, half, half))
