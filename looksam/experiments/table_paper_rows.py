"""The paper's tables on CIFAR-100 and of ViTs at medium scale: runs of the rivals, next to the paper's numbers."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from looksam.experiments import claims, medium_scale, table_cifar100, table_vit
from looksam.experiments.engine.reported import finished_records, numbers
from looksam.experiments.engine.runs import Record, Run, Store
from looksam.experiments.engine.search import SearchStudy, search_stages
from looksam.experiments.engine.timer import stored_ratios
from looksam.experiments.experiment import Experiment, Findings, mean_entry, times_entry
from looksam.experiments.medium_scale import MODELS, TIMINGS
from looksam.experiments.report.document import Entry, Table
from looksam.experiments.table_rivals import how_tuned
from looksam.methods import label

ROWS = ("base", "sam", "sam_5", "look_sam_5")
PaperColumns = Mapping[str, Callable[[str], Entry]]  # by title: the paper's entry for a row
Records = Mapping[str, Mapping[str, Sequence[Record]]]  # by label-noise setting, then by row


def _studies(model: str) -> dict[str, SearchStudy]:
    """The rivals' studies of a model, with these rows alone, by label-noise setting."""
    return {place.labels: study.only(ROWS) for place, study in medium_scale.studies().items() if place.model == model}


def _stages(model: str, store: Store, seeds: int) -> Iterator[list[Run]]:
    return search_stages(_studies(model).values(), store, seeds)


def _findings(model: str, paper: PaperColumns, store: Store, seeds: int) -> Findings:
    """The report; of runs that are not finished yet, it leaves out what depends on them."""
    records: Records = {
        labels: {row: finished_records(store, recipe, seeds) for row, recipe in study.reported(store).items()}
        for labels, study in _studies(model).items()
    }
    finished = sum(len(found) for rows in records.values() for found in rows.values())
    wanted = seeds * len(ROWS) * len(records)
    table, notes = _table(model, paper, records, store), [claims.HOW_JUDGED, how_tuned(seeds)]
    if finished < wanted:
        return Findings([f"{finished} of {wanted} runs are finished."], [table], (), notes)
    scores = {
        labels: {row: numbers(found, "test_accuracy") for row, found in rows.items()}
        for labels, rows in records.items()
    }
    found = claims.of_look_sam(scores, stored_ratios(store, TIMINGS[model]), MODELS[model].label)
    return Findings([f"{c.text}: {c.verdict} ({c.evidence})." for c in found], [table], (), notes, found)


def _table(model: str, paper: PaperColumns, records: Records, store: Store) -> Table:
    times, optimizer = stored_ratios(store, TIMINGS[model]), MODELS[model].recipe.optimizer
    header = ("method", *(f"{labels}, test %" for labels in records), "time", *(f"paper: {name}" for name in paper))
    lines: list[tuple[Entry, ...]] = []
    for row in ROWS:
        found = [rows[row] for rows in records.values()]
        ours = [mean_entry(numbers(part, "test_accuracy")) if part else None for part in found]
        time = times_entry(times[row][1] if row in times else None)
        lines.append((label(row, optimizer), *ours, time, *(entry(row) for entry in paper.values())))
    return Table(MODELS[model].label, header, lines)


def _experiment(name: str, model: str, title: str, question: str, paper: PaperColumns) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        question=question,
        stages=functools.partial(_stages, model),
        findings=functools.partial(_findings, model, paper),
        timings=(TIMINGS[model],),
    )


CIFAR100 = _experiment(
    "cifar100",
    "resnet",
    "Accuracy on CIFAR-100 at medium scale",
    table_cifar100.CIFAR100.question,
    {
        name: functools.partial(table_cifar100.paper_accuracy, model=model)
        for name, model in table_cifar100.MODELS.items()
    },
)
VIT = _experiment(
    "vit",
    "vit",
    "Accuracy and time of Vision Transformers at medium scale",
    table_vit.VIT.question,
    {name: functools.partial(table_vit.paper_accuracy, model=model) for name, model in table_vit.MODELS.items()},
)
