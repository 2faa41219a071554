"""The paper's tables and figures, at full scale and at small and medium scales that two CPU cores can train.

One file per table or figure says which runs it needs and what it shows of them; ``engine`` trains, tunes, times and
stores the runs, ``report`` writes tables, figures and pages. The names of the experiments are known without JAX; an
experiment is loaded when it is asked for.

>>> "vit" in EXPERIMENT_NAMES
True
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looksam.experiments.experiment import Experiment

__all__ = ["EXPERIMENTS", "EXPERIMENT_NAMES", "MEDIUM_EXPERIMENTS", "MEDIUM_NAMES"]

# In the paper's order: the module of each experiment and its name there.
_SMALL = {
    "cifar100": ("table_cifar100", "CIFAR100"),
    "vit": ("table_vit", "VIT"),
    "large-batch": ("table_large_batch", "LARGE_BATCH"),
    "augment-64k": ("table_augment_64k", "AUGMENT_64K"),
    "time": ("table_time", "TIME"),
    "alpha": ("table_sensitivity", "ALPHA"),
    "rho": ("table_sensitivity", "RHO"),
    "tradeoff": ("figure_tradeoff", "TRADEOFF"),
    "sam5-gap": ("figure_sam5_gap", "SAM5_GAP"),
    "drift": ("figure_drift", "DRIFT"),
    "bound": ("appendix_bound", "BOUND"),
}
_MEDIUM = {
    "rivals": ("table_rivals", "RIVALS"),
    "cifar100": ("table_paper_rows", "CIFAR100"),
    "vit": ("table_paper_rows", "VIT"),
    "confirm": ("table_confirm", "CONFIRM"),
    "large-batch": ("table_batch_growth", "BATCH_GROWTH"),
}
EXPERIMENT_NAMES = tuple(_SMALL)  # at small scale, and most of them at full scale
MEDIUM_NAMES = tuple(_MEDIUM)


class _Registry(Mapping[str, "Experiment"]):
    """The experiments of a scale by name, each imported on first use."""

    def __init__(self, places: Mapping[str, tuple[str, str]]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> "Experiment":
        module, attribute = self._places[name]
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


EXPERIMENTS: Mapping[str, "Experiment"] = _Registry(_SMALL)
MEDIUM_EXPERIMENTS: Mapping[str, "Experiment"] = _Registry(_MEDIUM)
