"""The experiments at small and medium scale, from end to end: train what is missing, measure times, write the reports.

Each experiment gets a folder with its report, tables, figures and the runs they rest on; one page shows them all.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from looksam.experiments import EXPERIMENTS, MEDIUM_EXPERIMENTS, medium_plan, medium_scale, small_scale
from looksam.experiments.engine import timer
from looksam.experiments.engine.pool import Stages, cost, missing, train_missing
from looksam.experiments.engine.runs import Record, Store, changed_settings, provenance
from looksam.experiments.experiment import Experiment
from looksam.experiments.overview import overview
from looksam.experiments.report.document import Section
from looksam.experiments.report.page import page
from looksam.experiments.report.text import section_markdown, section_text, table_csv
from looksam.trainer.recipe import Recipe

SUMMARY_VERSION = 1  # of summary.json
TITLE = "LookSAM: the paper's experiments, and its rivals"
INTRO = (
    "Every table and figure of the paper, asked again on two CPU cores: small models of the same code on real images, "
    "with the paper's numbers next to ours. Absolute accuracies do not compare with the paper's; orderings, gains and "
    "ratios do.",
    "± is one standard error over seeds. Where a gain or an ordering of the paper does not show, or is not "
    "significant, the text says so.",
)
SUMMARY = "summary"  # the folder of the summary, below that of all results


class Scale(NamedTuple):
    """A size at which experiments are trained on two CPU cores."""

    name: str
    experiments: Mapping[str, Experiment]
    folder: str  # of its results, below that of all
    timed_recipes: Callable[[str], dict[str, Recipe]]  # by row, of a timing's name
    prefix: str = ""  # of its sections' names in the page of all
    in_order: bool = False  # whether runs are trained in the order in which the stages list them
    plan: Callable[[], Section] | None = None


SCALES = {  # the page begins with the one that has more images
    scale.name: scale
    for scale in (
        Scale(
            "medium",
            MEDIUM_EXPERIMENTS,
            "medium",
            medium_scale.timed_recipes,
            prefix="medium-",
            in_order=True,
            plan=medium_plan.section,
        ),
        Scale("small", EXPERIMENTS, ".", small_scale.timed_recipes),
    )
}


class Reproduction:
    """Some experiments of a scale on ``seeds`` seeds, with their results below ``out`` and their runs in ``runs``."""

    def __init__(self, out: pathlib.Path, names: tuple[str, ...], seeds: int, scale: str = "small") -> None:
        self.scale, self.root = SCALES[scale], out
        self.out, self.names, self.seeds = out / self.scale.folder, names, seeds
        self.store = Store(self.out / "runs")

    def outlook(self) -> str:
        """What remains to be done, in words; at medium scale after the plan."""
        return self._missing() if self.scale.plan is None else f"{section_text(self.scale.plan())}\n\n{self._missing()}"

    def _missing(self) -> str:
        runs = [run for part in missing(self.store, self._stages(), self.seeds) for run in part]
        minutes = sum(map(cost, runs)) / 1000 / 60
        timings = ", ".join(self._missing_timings()) or "none"
        least = "at least " if any(run.kind == "tune" for run in runs) else ""  # the outcome decides how many more
        return f"{least}{len(runs)} runs to train, about {minutes:.0f} minutes of one core; times to measure: {timings}"

    def fill(self, workers: int | None, data_dir: str | None, download: bool, report: Callable[[str], None]) -> None:
        """Trains the missing runs, then measures the missing times."""
        train_missing(
            self.store,
            self._stages(),
            seeds=self.seeds,
            workers=workers or os.cpu_count() or 1,
            data_dir=data_dir,
            download=download,
            in_order=self.scale.in_order,
            report=report,
        )
        for name in self._missing_timings():  # the training processes have ended: nothing else may run now
            report(f"measuring times on {name}")
            self.store.write(f"timing-{name}", timer.measure(self.scale.timed_recipes(name), report) | provenance())

    def write(self) -> Iterator[str]:
        """Writes the results of each experiment that can be reported, then the page of all; gives their texts."""
        for name in self.names:
            experiment = self.scale.experiments[name]
            if not is_reportable(experiment, self.store, self.seeds):
                yield f"{name}: runs or times are missing"
                continue
            section = sourced_section(experiment, self.store, self.seeds, self.scale.name)
            write_section(section, summary(experiment, self.store, self.seeds), self.out / name)
            yield section_text(section)
        everything = stored_sections(self.root, self.seeds)
        summary_section = overview(everything)
        write_texts_and_figures(summary_section, self.root / SUMMARY)
        (self.root / "report.html").write_text(page([summary_section, *everything], TITLE, INTRO))
        yield f"{self.root}/report.html"

    def _stages(self) -> list[Stages]:
        return [self.scale.experiments[name].stages for name in self.names]

    def _missing_timings(self) -> list[str]:
        quoted = dict.fromkeys(timing for name in self.names for timing in self.scale.experiments[name].timings)
        return [timing for timing in quoted if not timer.stored_ratios(self.store, timing)]


def stored_sections(out: pathlib.Path, seeds: int) -> list[Section]:
    """The reports of all experiments below ``out`` that can be reported, with names of their own."""
    found = []
    for scale in SCALES.values():
        store = Store(out / scale.folder / "runs")
        for experiment in scale.experiments.values():
            if is_reportable(experiment, store, seeds):
                section = sourced_section(experiment, store, seeds, scale.name)
                found.append(dataclasses.replace(section, name=scale.prefix + section.name))
    return found


def is_reportable(experiment: Experiment, store: Store, seeds: int) -> bool:
    """Whether the times of an experiment are stored, and all of its runs or those of one of its parts."""
    if not all(timer.stored_ratios(store, timing) for timing in experiment.timings):
        return False
    if experiment.in_parts:
        return experiment.in_parts(store, seeds)
    return all(run in store for stage in experiment.stages(store, seeds) for run in stage)


def sections(store: Store, seeds: int) -> list[Section]:
    """The reports of all experiments at small scale."""
    return [sourced_section(experiment, store, seeds) for experiment in EXPERIMENTS.values()]


def sourced_section(experiment: Experiment, store: Store, seeds: int, scale: str = "small") -> Section:
    """The report of an experiment, with the commits and versions that its runs were trained by."""
    source = summary(experiment, store, seeds)
    about: dict[str, Any] = {"scale": scale, "seeds": seeds, "commits": ", ".join(source["commits"])}
    about |= {name: ", ".join(versions) for name, versions in source["versions"].items()}
    return dataclasses.replace(experiment.section(store, seeds), source=about)


def summary(experiment: Experiment, store: Store, seeds: int) -> dict[str, Any]:
    """Every run that the experiment rests on: its settings, seeds, accuracies and provenance.

    Raises ValueError if one is missing, unless the experiment is reported in parts.
    """
    runs: dict[str, dict[str, Any]] = {}
    commits: set[str] = set()
    versions: dict[str, set[str]] = {}

    def note(record: Record) -> None:
        if "commit" in record:
            commits.add(record["commit"])
        for name, version in record.get("versions", {}).items():
            versions.setdefault(name, set()).add(version)

    for run in (run for stage in experiment.stages(store, seeds) for run in stage):
        record = store.get(run)
        if record is None and experiment.in_parts:
            continue
        if record is None:
            raise ValueError(f"{run.key} with seed {run.recipe.seed} is not stored; run `looksam reproduce`.")
        entry = runs.setdefault(run.key, {"recipe": changed_settings(run.recipe), "seeds": [], "accuracy": []})
        if run.recipe.seed not in entry["seeds"]:
            entry["seeds"].append(run.recipe.seed)
            entry["accuracy"].append(_accuracy(record))
        note(record)
    for timing in experiment.timings:
        note(store.measurement(f"timing-{timing}") or {})
    return {
        "version": SUMMARY_VERSION,
        "experiment": experiment.name,
        "commits": sorted(commits),
        "versions": {name: sorted(values) for name, values in sorted(versions.items())},
        "runs": runs,
    }


def _accuracy(record: Record) -> float | None:
    """The accuracy on the test set; for tuning runs on the held-out images."""
    curve = record.get("validation_accuracy")
    return record.get("test_accuracy", curve[-1] if curve else None)


def write_section(section: Section, source: dict[str, Any], folder: pathlib.Path) -> None:
    """Writes report.md, a CSV for each table, figures as SVG and PNG, and summary.json."""
    write_texts_and_figures(section, folder)
    (folder / "summary.json").write_text(json.dumps(source, indent=None, separators=(",", ":")) + "\n")


def write_texts_and_figures(section: Section, folder: pathlib.Path) -> None:
    """Writes all but summary.json."""
    from looksam.experiments.report.figures import draw

    folder.mkdir(parents=True, exist_ok=True)
    for figure in section.figures:
        draw(figure, folder)
    for name, text in texts(section).items():
        (folder / name).write_text(text)


def texts(section: Section) -> dict[str, str]:
    """The text files of a section, which a test compares with the stored ones."""
    tables = {f"table-{i + 1}.csv": table_csv(table) for i, table in enumerate(section.tables)}
    return {"report.md": section_markdown(section)} | tables
