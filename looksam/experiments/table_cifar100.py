"""Table "Accuracy of Different Models on CIFAR100": does LookSAM-k keep SAM's accuracy, and beat SAM-k?"""

import functools
from collections.abc import Iterator

from looksam.experiments import sam_comparison
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.experiment import Experiment, Findings, paper_entry
from looksam.experiments.report.document import Entry
from looksam.experiments.small_scale import resnet_studies
from looksam.trainer import recipes
from looksam.trainer.recipes.paper_tables import paper_row

MODELS = {"ResNet-18": "resnet18", "ResNet-50": "resnet50", "WRN-28-10": "wrn28_10"}  # the paper's


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    return sam_comparison.stages(resnet_studies(), store, seeds)


def findings(store: Store, seeds: int) -> Findings:
    return sam_comparison.findings(
        CIFAR100.name,
        model="Small ResNet, SGD-M",
        timed="resnet",
        studies=resnet_studies(),
        paper={title: functools.partial(paper_accuracy, model=model) for title, model in MODELS.items()},
        store=store,
        seeds=seeds,
    )


def paper_accuracy(row: str, model: str) -> Entry:
    """The paper's accuracy of a row."""
    return paper_entry("cifar100", paper_row(row, "sgdm"), model=model)


CIFAR100 = Experiment(
    name="cifar100",
    title="Accuracy on CIFAR-100",
    question="Does LookSAM-k keep SAM's accuracy, and beat SAM-k, which costs the same?",
    stages=stages,
    findings=findings,
    timings=("resnet",),
    full=tuple(name for name in recipes.ALL if name.startswith(tuple(f"cifar100-{m}-" for m in MODELS.values()))),
)
