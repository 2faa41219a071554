"""The paper's claims, and when they are said to hold in what was measured: the rule of each verdict, in one place.

A claim holds if it does in every setting that can tell. Where none can, it is not tested.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from looksam.experiments.engine.statistics import LEVEL, difference, gain_text, share_kept
from looksam.experiments.report.document import Claim

HOW_JUDGED = (
    "A claim holds if it does in every setting that can tell. Each is one comparison by Welch's t-test at p < 0.05, "
    "without Holm's correction for several comparisons, with which the same difference may be called not significant."
)
KEPT = 80  # percent of SAM's gain, from which LookSAM is said to keep it
COST_LIMIT = 1.3  # times the base's step, up to which a rule with k = 5 is said to cost "about 1.2"
ROBUST = 2.0  # points: the spread of the paper's own table of ρ

Scores = Mapping[str, Mapping[str, Sequence[float]]]  # by setting, then by row: the accuracy of each seed
Finding = tuple[bool | None, str]  # whether the claim holds in a setting, None if it cannot tell; and the numbers


def claim(text: str, findings: Mapping[str, Finding]) -> Claim:
    """The verdict from what was found in each setting."""
    told = [holds for holds, _ in findings.values() if holds is not None]
    evidence = "; ".join(f"{setting}: {numbers}" for setting, (_, numbers) in findings.items())
    return Claim(text, "not tested here" if not told else "holds" if all(told) else "does not hold", evidence)


def of_look_sam(scores: Scores, times: Mapping[str, Sequence[float]], model: str) -> list[Claim]:
    """The paper's three claims about LookSAM-5, from accuracies by label-noise setting and the quartiles of times."""
    cost = costs_a_fifth_more(times, "look_sam_5", "LookSAM-5", model)
    return [keeps_the_gain(scores), beats_sam_5(scores), cost]


def keeps_the_gain(scores: Scores) -> Claim:
    """LookSAM-5 keeps at least KEPT % of SAM's gain, wherever SAM gains significantly."""

    def found(rows: Mapping[str, Sequence[float]]) -> Finding:
        gain = difference(rows["sam"], rows["base"])
        if gain.mean <= 0 or gain.p >= LEVEL:
            return None, f"SAM has no clear gain ({gain.mean:+.2f})"
        share = round(100 * share_kept(rows["base"], rows["sam"], rows["look_sam_5"]))
        return share >= KEPT, f"{share} % of {gain.mean:+.2f}"

    return claim("LookSAM-5 keeps SAM's gain in accuracy", {labels: found(rows) for labels, rows in scores.items()})


def gains(text: str, scores: Scores, row: str, other: str) -> Claim:
    """One row is above another: significantly somewhere, and nowhere significantly below."""
    gaps = {setting: difference(rows[row], rows[other]) for setting, rows in scores.items()}
    findings: dict[str, Finding] = {
        setting: (gap.mean > 0, gain_text(gap.mean, True)) if gap.p < LEVEL else (None, gain_text(gap.mean, False))
        for setting, gap in gaps.items()
    }
    found = claim(text, findings)
    return found if found.verdict != "not tested here" else found._replace(verdict="does not hold")


def beats_sam_5(scores: Scores) -> Claim:
    """LookSAM-5 is above SAM-5, which costs the same."""
    return gains("LookSAM-5 is more accurate than SAM-5, at the same cost", scores, "look_sam_5", "sam_5")


def is_best(text: str, scores: Scores, row: str, words: str) -> Claim:
    """The mean of one row is the highest of all."""

    def found(rows: Mapping[str, Sequence[float]]) -> Finding:
        means = {name: float(np.mean(values)) for name, values in rows.items()}
        return means[row] == max(means.values()), f"{words} {means[row]:.2f} %, the best {max(means.values()):.2f} %"

    return claim(text, {setting: found(rows) for setting, rows in scores.items()})


def is_robust(text: str, scores: Scores) -> Claim:
    """All means lie within ROBUST points."""
    spreads = {setting: float(np.ptp([np.mean(v) for v in rows.values()])) for setting, rows in scores.items()}
    return claim(text, {setting: (spread <= ROBUST, f"within {spread:.2f}") for setting, spread in spreads.items()})


def costs_a_fifth_more(times: Mapping[str, Sequence[float]], row: str, words: str, setting: str) -> Claim:
    """The median step time is at most COST_LIMIT times the base's; ``times`` has the quartiles of each row."""
    median = times[row][1] if row in times else None
    found: Finding = (None, "not timed") if median is None else (median <= COST_LIMIT, f"{median:.2f}×")
    return claim(f"{words} takes about 1.2 times the base's time", {setting: found})
