"""The winner of the rivals again: LookSAM-5 in the last fifth against the base, on seeds that did not select it.

The best of twelve rows is partly luck, and after Holm's correction for all comparisons of the rivals five seeds leave
little significant. So the one row that users would choose, the cheapest within one standard error of the best on both
models with noisy labels, is trained on twice as many further seeds, and compared with the base alone.
"""

from collections.abc import Iterator, Mapping

from looksam.experiments import medium_scale
from looksam.experiments.engine.reported import load_records, numbers
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.search import SearchStudy, search_stages
from looksam.experiments.engine.statistics import (
    RULE,
    Difference,
    above_or_below,
    difference,
    gain_text,
    significant,
    verdict,
)
from looksam.experiments.engine.timer import stored_ratios
from looksam.experiments.experiment import Experiment, Findings, mean_entry, times_entry
from looksam.experiments.medium_scale import MODELS, TIMINGS
from looksam.experiments.report.document import Entry, Table
from looksam.experiments.table_rivals import how_tuned
from looksam.methods import label

CHOSEN = medium_scale.CONFIRMED
LABELS = medium_scale.CONFIRMED_LABELS
Scores = Mapping[str, list[float]]  # by row: the accuracy of each seed


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    """The tuning of both rows, which the rivals have too, then the further seeds."""
    studies = medium_scale.confirmed_studies()
    yield from search_stages(studies.values(), store, seeds=0)
    yield [run for study in studies.values() for runs in _runs(study, store, seeds).values() for run in runs]


def _runs(study: SearchStudy, store: Store, seeds: int) -> dict[str, list[Run]]:
    return {
        row: [Run("train", recipe.replace(seed=seed)) for seed in medium_scale.further_seeds(seeds)]
        for row, recipe in study.reported(store).items()
    }


def findings(store: Store, seeds: int) -> Findings:
    """The report; where runs are not finished yet, only how many are."""
    runs = {model: _runs(study, store, seeds) for model, study in medium_scale.confirmed_studies().items()}
    everything = [run for rows in runs.values() for part in rows.values() for run in part]
    finished = sum(run in store for run in everything)
    if finished < len(everything):
        return Findings([f"{finished} of {len(everything)} runs are finished."], [])
    scores = {
        model: {row: numbers(load_records(store, part), "test_accuracy") for row, part in rows.items()}
        for model, rows in runs.items()
    }
    found = {model: difference(rows[CHOSEN], rows["base"]) for model, rows in scores.items()}
    clear = significant(found)
    count = len(medium_scale.further_seeds(seeds))
    notes = [
        RULE,
        f"Settings are those of the rivals. {count} seeds that none of their runs has; how many, and which row, was "
        "decided when the rivals on noisy labels had been reported, and before these runs were trained.",
        how_tuned(count),
    ]
    answers = [f"{MODELS[model].label}, {LABELS}: {_answer(found[model], clear[model])}" for model in found]
    return Findings(answers, [_table(scores, found, store)], (), notes, (), [_headline(found, clear, count)])


def _table(scores: Mapping[str, Scores], found: Mapping[str, Difference], store: Store) -> Table:
    header = ("model", "base, test %", f"{label(CHOSEN)}, test %", "difference", "95 % interval", "p", "time")
    lines: list[tuple[Entry, ...]] = []
    for model, rows in scores.items():
        measured = [mean_entry(rows[row]) for row in ("base", CHOSEN)]
        gain, times = found[model], stored_ratios(store, TIMINGS[model])
        numbers_of = f"{gain.mean:+.2f}", f"{gain.low:+.2f} to {gain.high:+.2f}", f"{gain.p:.2g}"
        time = times_entry(times[CHOSEN][1] if CHOSEN in times else None)
        lines.append((MODELS[model].label, *measured, *numbers_of, time))
    return Table(f"Test accuracy on further seeds, {LABELS}", header, lines)


def _answer(gain: Difference, clear: bool) -> str:
    where = f"95 % interval {gain.low:+.2f} to {gain.high:+.2f}, p = {gain.p:.2g}"
    return f"{label(CHOSEN)} is {above_or_below(gain.mean)} the base ({verdict(clear)}; {where})."


def _headline(found: Mapping[str, Difference], clear: Mapping[str, bool], count: int) -> str:
    gains = [f"{gain_text(gain.mean, clear[model])} on the {MODELS[model].label}" for model, gain in found.items()]
    return f"On {count} further seeds, {label(CHOSEN)} against the base has {' and '.join(gains)} ({LABELS})."


CONFIRM = Experiment(
    name="confirm",
    title="LookSAM in the last fifth, on further seeds",
    question="Is the cheapest of the best rivals better than the base, on seeds that had no part in choosing it?",
    stages=stages,
    findings=findings,
    timings=tuple(TIMINGS.values()),
)
