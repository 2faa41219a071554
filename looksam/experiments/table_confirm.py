"""Further seeds: what five seeds left open with noisy labels, on seeds that selected nothing.

The best of twelve rows is partly luck, and after Holm's correction for all comparisons of the rivals five seeds leave
little significant. So the rows that matter most are trained on twice as many further seeds, in three families of
comparisons, each fixed before its runs: the rival that users would choose, LookSAM-5 in the last fifth, against the
base; the paper's claim, that LookSAM-5 keeps SAM's gain and SAM-5 does not; and what reusing g_v adds to SAM-5 at the
same settings, which does not depend on how LookSAM-5 was tuned.
"""

from collections.abc import Iterator, Mapping, Sequence

from looksam.experiments import claims, medium_scale
from looksam.experiments.engine.reported import load_records, numbers
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.search import SearchStudy, search_stages
from looksam.experiments.engine.statistics import (
    RULE,
    Difference,
    above_or_below,
    difference,
    gain_text,
    share_kept,
    significant,
    verdict,
)
from looksam.experiments.engine.timer import stored_ratios
from looksam.experiments.experiment import Experiment, Findings, mean_entry, times_entry
from looksam.experiments.medium_scale import MODELS, TIMINGS
from looksam.experiments.report.document import Entry, Table
from looksam.experiments.table_rivals import how_tuned
from looksam.methods import label

CHOSEN, *PAPER_ROWS = medium_scale.CONFIRMED
LABELS = medium_scale.CONFIRMED_LABELS
REUSES = {f"LookSAM-5, α = {alpha:g}": alpha for alpha in medium_scale.REUSE_ALPHAS}  # rows at SAM-5's settings
FAMILIES = (  # pairs of rows; Holm's correction is over those of a family, on both models
    ((CHOSEN, "base"),),
    (*((row, "base") for row in PAPER_ROWS), ("look_sam_5", "sam_5")),
    tuple((row, "sam_5") for row in REUSES),
)
Scores = Mapping[str, Mapping[str, list[float]]]  # by model, then by row: the accuracy of each seed
Compared = Mapping[tuple[str, str, str], tuple[Difference, bool]]  # by model and pair, with whether it is significant


def stages(store: Store, seeds: int) -> Iterator[list[Run]]:
    """The tuning of these rows, which the rivals have too, then the further seeds."""
    studies = medium_scale.confirmed_studies()
    yield from search_stages(studies.values(), store, seeds=0)
    yield [run for study in studies.values() for runs in _runs(study, store, seeds).values() for run in runs]


def _runs(study: SearchStudy, store: Store, seeds: int) -> dict[str, list[Run]]:
    sam_5 = study.tuned(store, "sam_5")
    reuses = {row: sam_5.replace(method="look_sam", alpha=alpha) for row, alpha in REUSES.items()}
    return {
        row: [Run("train", recipe.replace(seed=seed)) for seed in medium_scale.further_seeds(seeds)]
        for row, recipe in (study.reported(store) | reuses).items()
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
    compared = {key: found for pairs in FAMILIES for key, found in _compared(scores, pairs).items()}
    count = len(medium_scale.further_seeds(seeds))
    notes = [
        f"{RULE} Here these are the two of the first table, the six of the second together with LookSAM-5 against "
        "SAM-5 on both models, and the four of the third.",
        f"Settings are those of the rivals. {count} seeds that none of their runs has. How many, and which rows and "
        "comparisons, was decided before the runs of each table: of the first when the rivals on noisy labels had "
        "been reported, of each other when the one before it was known.",
        how_tuned(count),
        claims.HOW_JUDGED,
    ]
    by_model = {MODELS[model].label: rows for model, rows in scores.items()}
    verdicts = [claims.keeps_the_gain(by_model), claims.beats_sam_5(by_model)]
    answers = [
        _answer(model, pair, *compared[model, *pair]) for pairs in FAMILIES for model in scores for pair in pairs
    ]
    answers += [f"{one.text}: {one.verdict} ({one.evidence})." for one in verdicts]
    tables = [table(scores, compared, store) for table in (_late_table, _paper_table, _reuse_table)]
    return Findings(answers, tables, (), notes, verdicts, [_headline(scores, compared, count)])


def _compared(scores: Scores, pairs: Sequence[tuple[str, str]]) -> Compared:
    found = {
        (model, row, other): difference(rows[row], rows[other])
        for model, rows in scores.items()
        for row, other in pairs
    }
    clear = significant(found)
    return {key: (gain, clear[key]) for key, gain in found.items()}


# --- tables ---------------------------------------------------------------------------------------------------------

DIFFERENCE = ("difference", "95 % interval", "p")  # the columns of ``_difference_entries``


def _difference_entries(gain: Difference) -> tuple[Entry, ...]:
    return f"{gain.mean:+.2f}", _interval(gain), f"{gain.p:.2g}"


def _interval(gain: Difference) -> str:
    return f"{gain.low:+.2f} to {gain.high:+.2f}"


def _time(model: str, row: str, store: Store) -> Entry:
    times = stored_ratios(store, TIMINGS[model])
    return times_entry(times[row][1] if row in times else None)


def _late_table(scores: Scores, compared: Compared, store: Store) -> Table:
    header = ("model", "base, test %", f"{label(CHOSEN)}, test %", *DIFFERENCE, "time")
    lines: list[tuple[Entry, ...]] = []
    for model, rows in scores.items():
        measured = [mean_entry(rows[row]) for row in ("base", CHOSEN)]
        gain, _ = compared[model, CHOSEN, "base"]
        lines.append((MODELS[model].label, *measured, *_difference_entries(gain), _time(model, CHOSEN, store)))
    return Table(f"{label(CHOSEN)} on further seeds, {LABELS}", header, lines)


def _paper_table(scores: Scores, compared: Compared, store: Store) -> Table:
    header = ("model", "method", "test %", *DIFFERENCE, "share of SAM's gain", "time")
    lines: list[tuple[Entry, ...]] = []
    for model, rows in scores.items():
        of_sam, clear = compared[model, "sam", "base"]
        for row in PAPER_ROWS:
            gain, _ = compared[model, row, "base"]
            kept = 100 * share_kept(rows["base"], rows["sam"], rows[row])
            share = f"{kept:.0f} %" if row != "sam" and clear and of_sam.mean > 0 else None
            name = MODELS[model].label, label(row)
            lines.append((*name, mean_entry(rows[row]), *_difference_entries(gain), share, _time(model, row, store)))
    return Table(f"The paper's methods on further seeds, {LABELS}, against the base above", header, lines)


def _reuse_table(scores: Scores, compared: Compared, store: Store) -> Table:
    header = ("model", "method", "test %", *DIFFERENCE, "time")
    lines: list[tuple[Entry, ...]] = []
    for model, rows in scores.items():
        for row in REUSES:
            gain, _ = compared[model, row, "sam_5"]
            name, time = (MODELS[model].label, row), _time(model, "look_sam_5", store)
            lines.append((*name, mean_entry(rows[row]), *_difference_entries(gain), time))
    return Table(f"LookSAM-5 at the settings selected for SAM-5, {LABELS}, against SAM-5 above", header, lines)


# --- sentences ------------------------------------------------------------------------------------------------------


def _answer(model: str, pair: tuple[str, str], gain: Difference, clear: bool) -> str:
    row, other = map(_words, pair)
    where = f"95 % interval {_interval(gain)}, p = {gain.p:.2g}"
    return f"{MODELS[model].label}, {LABELS}: {row} is {above_or_below(gain.mean)} {other} ({verdict(clear)}; {where})."


def _words(row: str) -> str:
    if row in REUSES:
        return f"{row}, at the settings of SAM-5,"
    return "the base" if row == "base" else label(row)


def _headline(scores: Scores, compared: Compared, count: int) -> str:
    def text(model: str, row: str, other: str) -> str:
        gain, clear = compared[model, row, other]
        return f"{label(row)} {gain_text(gain.mean, clear)}"

    gains = [
        f"{', '.join(text(model, row, 'base') for row in (*PAPER_ROWS, CHOSEN))} on the {MODELS[model].label}, and "
        f"{text(model, 'look_sam_5', 'sam_5')} against {label('sam_5')}"
        for model in scores
    ]
    return f"On {count} further seeds with {LABELS}, against the base: {'; '.join(gains)}."


CONFIRM = Experiment(
    name="confirm",
    title="Further seeds",
    question="Which differences on noisy labels are real, on seeds that had no part in choosing them?",
    stages=stages,
    findings=findings,
    timings=tuple(TIMINGS.values()),
)
