"""Table "Accuracy of Different Models on CIFAR100": does LookSAM-k keep SAM's accuracy, and beat SAM-k?"""

import functools
from collections.abc import Iterator

from looksam.experiments import against_sam, desk, variants
from looksam.experiments.entries import printed
from looksam.experiments.report.document import Entry, Section
from looksam.experiments.store import Store
from looksam.experiments.study import Study
from looksam.experiments.task import Task
from looksam.trainer.recipes import cifar as full
from looksam.trainer.recipes import paper_tables as paper

NAME = "cifar100"
TITLE = "Accuracy on CIFAR-100"
QUESTION = "Does LookSAM-k keep SAM's accuracy, and beat SAM-k, which costs the same?"
FULL = tuple(full.RECIPES)
MODELS = {"ResNet-18": "resnet18", "ResNet-50": "resnet50", "WRN-28-10": "wrn28_10"}


def studies() -> dict[str, Study]:
    return {column: desk.resnet(noise) for column, noise in desk.COLUMNS.items()}


def stages(store: Store, seeds: int) -> Iterator[list[Task]]:
    return variants.stages(list(studies().values()), store, seeds)


def section(store: Store, seeds: int) -> Section:
    return against_sam.section(
        NAME,
        TITLE,
        QUESTION,
        model="Small ResNet, SGD-M",
        timed="resnet",
        studies=studies(),
        paper={title: functools.partial(_paper, model=model) for title, model in MODELS.items()},
        store=store,
        seeds=seeds,
    )


def _paper(row: str, model: str) -> Entry:
    return printed(paper.number("cifar100", {"base": "sgd_m"}.get(row, row), model=model))
