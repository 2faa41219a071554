"""Results on disk: for each experiment a folder with its tables, figures, text and what they rest on."""

import dataclasses
import json
import pathlib
from typing import Any

from looksam.experiments.registry import EXPERIMENTS, Experiment
from looksam.experiments.report.document import Section
from looksam.experiments.report.text import section_markdown, table_csv
from looksam.experiments.store import Store
from looksam.experiments.task import settings

TIMINGS_OF = {
    "cifar100": ("resnet",),
    "vit": ("vit",),
    "time": ("lamb",),
    "tradeoff": ("vit",),
}  # which timings an experiment quotes
TITLE = "LookSAM: the paper's experiments at desk scale"
INTRO = (
    "Every table and figure of the paper, asked again on two CPU cores: small models of the same code on real images, "
    "with the paper's numbers beside ours. Accuracies do not compare with the paper's in height; orderings, gains and "
    "ratios do.",
    "± is one standard error over seeds. Where a gain or an ordering of the paper does not show, or lies within the "
    "noise, the text says so.",
)


def sections(store: Store, seeds: int, names: tuple[str, ...] = tuple(EXPERIMENTS)) -> list[Section]:
    return [with_source(EXPERIMENTS[name], store, seeds) for name in names]


def with_source(experiment: Experiment, store: Store, seeds: int) -> Section:
    source = summary(experiment, store, seeds)
    about: dict[str, Any] = {"scale": "desk", "seeds": seeds, "commits": ", ".join(source["commits"])}
    about |= {name: ", ".join(found) for name, found in source["versions"].items()}
    return dataclasses.replace(experiment.section(store, seeds), source=about)


def summary(experiment: Experiment, store: Store, seeds: int) -> dict[str, Any]:
    """Every run that the experiment rests on: its recipe, seeds and metrics, and what they were made by."""
    cells: dict[str, dict[str, Any]] = {}
    commits: set[str] = set()
    versions: dict[str, set[str]] = {}
    for task in (task for stage in experiment.stages(store, seeds) for task in stage):
        record = store.get(task)
        if record is None:
            raise ValueError(f"{task.key} of seed {task.recipe.seed} is not there; run `looksam reproduce`.")
        cell = cells.setdefault(task.key, {"recipe": settings(task.recipe), "seeds": [], "accuracy": []})
        if task.recipe.seed not in cell["seeds"]:
            cell["seeds"].append(task.recipe.seed)
            cell["accuracy"].append(_accuracy(record))
        _note(record, commits, versions)
    for name in TIMINGS_OF.get(experiment.NAME, ()):
        _note(store.measurement(f"timing-{name}") or {}, commits, versions)
    made = {name: sorted(found) for name, found in sorted(versions.items())}
    return {"experiment": experiment.NAME, "commits": sorted(commits), "versions": made, "cells": cells}


def _accuracy(record: dict[str, Any]) -> float | None:
    """On the test set; of tuning runs on the held-out images."""
    curve = record.get("validation_accuracy")
    return record.get("test_accuracy", curve[-1] if curve else None)


def _note(record: dict[str, Any], commits: set[str], versions: dict[str, set[str]]) -> None:
    if "commit" in record:
        commits.add(record["commit"])
    for name, version in record.get("versions", {}).items():
        versions.setdefault(name, set()).add(version)


def write_section(section: Section, source: dict[str, Any], folder: pathlib.Path) -> None:
    """report.md, a CSV for each table, figures as SVG and PNG, and summary.json."""
    from looksam.experiments.report.figures import draw

    folder.mkdir(parents=True, exist_ok=True)
    for figure in section.figures:
        draw(figure, folder)
    for name, text in texts(section).items():
        (folder / name).write_text(text)
    (folder / "summary.json").write_text(json.dumps(source, indent=None, separators=(",", ":")) + "\n")


def texts(section: Section) -> dict[str, str]:
    """The files of a section that are text: what a test holds the stored ones to."""
    tables = {f"table-{i + 1}.csv": table_csv(table) for i, table in enumerate(section.tables)}
    return {"report.md": section_markdown(section)} | tables
