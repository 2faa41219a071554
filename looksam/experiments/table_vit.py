"""Table "Top-1 accuracy and training time": AdamW, SAM, SAM-k and LookSAM-k on ViTs."""

import functools
from collections.abc import Callable, Iterator

from looksam.experiments import sam_comparison
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.experiment import Experiment, Findings, paper_number, printed, ratio, times_entry
from looksam.experiments.report.document import Entry
from looksam.experiments.small_scale import vit_studies
from looksam.trainer import recipes
from looksam.trainer.recipes.paper_tables import paper_row

MODELS = {"ViT-B-16": "vit_b16", "ViT-B-32": "vit_b32", "ViT-S-16": "vit_s16", "ViT-S-32": "vit_s32"}  # the paper's


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    return sam_comparison.stages(vit_studies(), store, seeds)


def findings(store: Store, seeds: int) -> Findings:
    columns: dict[str, Callable[[str], Entry]] = {"relative step time, ViT-B-16": _paper_time}
    columns |= {title: functools.partial(paper_accuracy, model=model) for title, model in MODELS.items()}
    return sam_comparison.findings(
        VIT.name,
        model="Small ViT, AdamW",
        timed="vit",
        studies=vit_studies(),
        paper=columns,
        store=store,
        seeds=seeds,
    )


def paper_accuracy(row: str, model: str) -> Entry:
    """The paper's top-1 accuracy of a row."""
    return printed(_paper(row, model, "top1"))


def _paper_time(row: str, model: str = "vit_b16") -> Entry:
    """The paper's seconds per epoch, relative to AdamW's."""
    seconds, base = (_paper(name, model, "seconds_per_epoch") for name in (row, "base"))
    return times_entry(ratio(seconds, base))


def _paper(row: str, model: str, column: str) -> float | None:
    return paper_number("vit", column, model=model, method=paper_row(row, "adamw"))


VIT = Experiment(
    name="vit",
    title="Accuracy and time of Vision Transformers",
    question="How accurate is LookSAM-k, and how much longer than AdamW does it take?",
    stages=stages,
    findings=findings,
    timings=("vit",),
    full=tuple(
        name
        for name, listing in recipes.ALL.items()
        if listing.recipe.optimizer == "adamw" and listing.recipe.model in MODELS.values() and name.startswith("vit_")
    ),
)
