"""Table "Top-1 accuracy and training time": AdamW, SAM, SAM-k and LookSAM-k on ViTs."""

import functools
from collections.abc import Callable, Iterator

from looksam.experiments import against_sam, desk, variants
from looksam.experiments.entries import printed, ratio
from looksam.experiments.report.document import Entry, Section
from looksam.experiments.store import Store
from looksam.experiments.study import Study
from looksam.experiments.task import Task
from looksam.trainer.recipes import imagenet as full
from looksam.trainer.recipes import paper_tables as paper

NAME = "vit"
TITLE = "Accuracy and time of Vision Transformers"
QUESTION = "How accurate is LookSAM-k, and how much longer than AdamW does it take?"
FULL = tuple(full.VIT_RECIPES)
MODELS = {"ViT-B-16": "vit_b16", "ViT-B-32": "vit_b32", "ViT-S-16": "vit_s16", "ViT-S-32": "vit_s32"}


def studies() -> dict[str, Study]:
    return {column: desk.vit(noise) for column, noise in desk.COLUMNS.items()}


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    return variants.stages(list(studies().values()), store, seeds)


def section(store: Store, seeds: int) -> Section:
    columns: dict[str, Callable[[str], Entry]] = {"time of base, ViT-B-16": time_ratio}
    columns |= {title: functools.partial(_accuracy, model=model) for title, model in MODELS.items()}
    return against_sam.section(
        NAME,
        TITLE,
        QUESTION,
        model="Small ViT, AdamW",
        timed="vit",
        studies=studies(),
        paper=columns,
        store=store,
        seeds=seeds,
    )


def time_ratio(row: str, model: str = "vit_b16") -> Entry:
    """Seconds an epoch to those of AdamW, in the paper."""
    seconds, base = (_cell(name, model, "seconds_per_epoch") for name in (row, "base"))
    return ratio(seconds, base)


def _accuracy(row: str, model: str) -> Entry:
    return printed(_cell(row, model, "top1"))


def _cell(row: str, model: str, column: str) -> float | None:
    return paper.number("vit", column, model=model, method={"base": "adamw"}.get(row, row))
