"""The eleven experiments, in the paper's order."""

from collections.abc import Iterator
from typing import Any, Protocol, cast

from looksam.experiments import (
    alpha,
    augment_64k,
    bound,
    cifar100,
    drift,
    large_batch,
    rho,
    sam5_gap,
    time_cost,
    tradeoff,
    vit,
)
from looksam.experiments.report.document import Section
from looksam.experiments.store import Store
from looksam.experiments.task import Task


class Experiment(Protocol):
    """A module of this package."""

    NAME: str
    TITLE: str
    QUESTION: str
    FULL: tuple[str, ...]  # the recipes of full scale

    def stages(self, store: Store, seeds: int) -> Iterator[list[Task]]:
        """Lists of tasks, each of which may rest on the results of the lists before it."""

    def section(self, store: Store, seeds: int) -> Section:
        """What came out; ValueError where something is missing."""


_MODULES: tuple[Any, ...] = (
    *(cifar100, vit, large_batch, augment_64k, time_cost, alpha),
    *(rho, tradeoff, sam5_gap, drift, bound),
)
EXPERIMENTS: dict[str, Experiment] = {module.NAME: cast(Experiment, module) for module in _MODULES}
