"""Large batches at medium scale: LAMB alone and with SAM, LookSAM and Look-LayerSAM, as the batch grows 16-fold."""

from collections.abc import Iterator, Mapping, Sequence

from looksam.experiments import claims, medium_scale
from looksam.experiments.engine.reported import finished_records, numbers
from looksam.experiments.engine.runs import Record, Run, Store
from looksam.experiments.engine.search import search_stages
from looksam.experiments.engine.statistics import RULE, difference, gain_text, significant
from looksam.experiments.experiment import SETTINGS, Experiment, Findings, mean_entry, paper_entry, setting_entries
from looksam.experiments.medium_scale import LAMB_BATCHES, LAMB_LABELS, LAMB_SEEDS, LAMB_STARTS
from looksam.experiments.report.document import Claim, Entry, Table
from looksam.experiments.table_rivals import how_tuned
from looksam.methods import label
from looksam.trainer.recipes.paper_tables import paper_row

PAPER_BATCHES = (4096, 32768)  # of the paper, which ours stand for

Records = Mapping[int, Mapping[str, Sequence[Record]]]  # by batch, then by row


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    return search_stages(medium_scale.lamb_studies().values(), store, min(seeds, LAMB_SEEDS))


def findings(store: Store, seeds: int) -> Findings:
    """The report; of runs that are not finished yet, it leaves out what depends on them."""
    studies, count = medium_scale.lamb_studies(), min(seeds, LAMB_SEEDS)
    records: Records = {
        batch: {row: finished_records(store, recipe, count) for row, recipe in study.reported(store).items()}
        for batch, study in studies.items()
    }
    steps = LAMB_BATCHES[1] // LAMB_BATCHES[0]
    return Findings(
        [_answer(batch, found, count) for batch, found in records.items()],
        [_accuracy_table(records), _selected_table(store)],
        (),
        [RULE, how_tuned(count), f"The same epochs at every batch, so {steps} times fewer steps at the largest."],
        [_claim(records[LAMB_BATCHES[-1]])] if all(len(r) == count for r in records[LAMB_BATCHES[-1]].values()) else (),
    )


def _claim(records: Mapping[str, Sequence[Record]]) -> Claim:
    scores = {LAMB_LABELS: {row: numbers(found, "test_accuracy") for row, found in records.items()}}
    text = "Look-LayerSAM is the most accurate at the largest batch"
    return claims.is_best(text, scores, "look_layer_sam", "Look-LayerSAM-5")


def _name(row: str) -> str:
    return "LAMB" if row == "base" else f"LAMB + {label(row, k=5)}"


def _accuracy_table(records: Records) -> Table:
    header = ("method", *(f"batch {batch:,}" for batch in LAMB_BATCHES), *(f"paper: {b:,}" for b in PAPER_BATCHES))
    lines: list[tuple[Entry, ...]] = []
    for row in LAMB_STARTS:
        found = [records[batch][row] for batch in LAMB_BATCHES]
        ours = [mean_entry(numbers(part, "test_accuracy")) if part else None for part in found]
        method = paper_row(row, "lamb")
        theirs = [paper_entry("large_batch", str(batch), method=method) for batch in PAPER_BATCHES]
        lines.append((_name(row), *ours, *theirs))
    return Table(f"Test accuracy in %, small ViT, {LAMB_LABELS}", header, lines)


def _selected_table(store: Store) -> Table:
    lines: list[tuple[Entry, ...]] = []
    for batch, study in medium_scale.lamb_studies().items():
        for row in study.starts:
            recipe, tried = study.tuned(store, row), str(len(study.tried(store, row)))
            lines.append((str(batch), _name(row), *setting_entries(recipe), tried))
    return Table("Selected hyper-parameters", ("batch", "method", *SETTINGS, "settings tried"), lines)


def _answer(batch: int, records: Mapping[str, Sequence[Record]], seeds: int) -> str:
    """Each row against LAMB alone."""
    name = f"{LAMB_LABELS}, batch {batch:,}"
    finished, wanted = sum(map(len, records.values())), seeds * len(records)
    if finished < wanted:
        return f"{name}: {finished} of {wanted} runs are finished."
    scores = {row: numbers(found, "test_accuracy") for row, found in records.items()}
    gains = {row: difference(values, scores["base"]) for row, values in scores.items() if row != "base"}
    clear = significant(gains)
    parts = [f"{_name(row)} {gain_text(gain.mean, clear[row])}" for row, gain in gains.items()]
    return f"{name}: against LAMB alone, {'; '.join(parts)}."


BATCH_GROWTH = Experiment(
    name="large-batch",
    title="Large batches at medium scale",
    question="Does Look-LayerSAM hold up as the batch grows at fixed epochs?",
    stages=stages,
    findings=findings,
)
