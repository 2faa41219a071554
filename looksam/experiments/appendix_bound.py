"""Appendix theorem: the PAC-Bayes bound as a number, for the small models."""

from collections.abc import Iterator

import numpy as np

from looksam.analysis import pac_bayes_bound
from looksam.experiments import claims, table_cifar100, table_vit
from looksam.experiments.engine.reported import reported_records
from looksam.experiments.engine.runner import SHARPNESS_RHO
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.experiment import Experiment, Findings
from looksam.experiments.report.document import Entry, Table, Value
from looksam.experiments.sam_comparison import CURVES, tuned_rows
from looksam.experiments.small_scale import resnet_studies, vit_studies
from looksam.methods import label
from looksam.trainer.data import Dataset, Images
from looksam.trainer.recipe import Recipe
from looksam.trainer.training import parameter_count

DELTA = 0.05
TERMS = ("bound", "worst loss", "slack", "weights", "confidence", "constant")
MEASURED = ("weight_norm", "train_loss_at_end", "sharpness_train")


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    for parts in zip(table_vit.stages(store, seeds), table_cifar100.stages(store, seeds), strict=True):
        yield [run for part in parts for run in part]


def findings(store: Store, seeds: int) -> Findings:
    lines: list[tuple[Entry, ...]] = []
    for model, studies in {"ViT": vit_studies(), "ResNet": resnet_studies()}.items():
        for labels, study in studies.items():
            recipes, parameters = tuned_rows(study, store), _parameters(study.recipe)
            for row in CURVES:
                terms = _bound(recipes[row], parameters, store, seeds)
                lines.append((model, labels, label(row, recipes[row].optimizer), *terms))
    slacks = [entry.value for line in lines if isinstance(entry := line[3 + TERMS.index("slack")], Value)]
    span = f"{min(slacks):.1f} to {max(slacks):.1f}" if slacks else "not finite"
    header = ("model", "labels", "method", *TERMS, "‖w‖", "parameters")
    return Findings(
        [
            f"{'Something' if slacks and min(slacks) < 1 else 'Nothing'}: the slack alone is {span}, and a loss "
            "between 0 and 1 is never above 1. With tens of parameters for each training image the term of the weights "
            "dominates all others.",
        ],
        [Table(f"δ = {DELTA}, ρ = {SHARPNESS_RHO}, ρ₀ = 0; means over {seeds} seeds", header, lines)],
        (),
        [
            "bound = worst loss + slack, slack = √((weights + confidence + constant) / (n − 1)), with 8 log(6n + 3d) "
            "for the constant. Worst loss is the training loss one ascent step of ρ away, at most the maximum within "
            "radius ρ.",
            "The theorem is for a loss between 0 and 1; the cross-entropy takes its place here. The paper prints "
            "no number.",
        ],
        [claims.claim("The bound of the appendix limits the test loss", {"small models": (None, f"slack {span}")})],
    )


def _bound(recipe: Recipe, parameters: int, store: Store, seeds: int) -> list[Entry]:
    """The terms of the bound, the norm of the weights and the number of parameters, as means over seeds."""
    records = reported_records(store, recipe, seeds)
    if any(record[name] is None for record in records for name in MEASURED):  # a run that diverged has no bound
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
    means = [float(np.mean([terms[i] for terms in bounds])) for i in range(len(TERMS))]
    norm = Value(float(np.mean([record["weight_norm"] for record in records])), digits=1)
    return [*(Value(mean, digits=2 if i < 3 else 0) for i, mean in enumerate(means)), norm, f"{parameters:,}"]


def _parameters(recipe: Recipe) -> int:
    """The exact number of parameters; the one stored with a run is rounded to a few digits."""
    shape = (recipe.image_size or 32, recipe.image_size or 32, 3)
    none = Images(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32))
    half = (0.5,) * 3
    return parameter_count(recipe, Dataset(recipe.dataset, none, none, recipe.classes or 100, shape, half, half))


BOUND = Experiment(
    name="bound",
    title="The PAC-Bayes bound as a number",
    question="What does the theorem of the appendix say about the small models?",
    stages=stages,
    findings=findings,
)
