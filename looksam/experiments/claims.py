"""The paper's claims, and when they are said to hold in what was measured: the rule of each verdict, in one place."""

from collections.abc import Mapping, Sequence

from looksam.experiments.engine.statistics import difference, share_kept, significant
from looksam.experiments.report.document import Claim, Verdict

KEPT = 80  # percent of SAM's gain, from which LookSAM is said to keep it
COST_LIMIT = 1.3  # times the base's step, up to which LookSAM-5 is said to cost "about 1.2"

Scores = Mapping[str, Mapping[str, Sequence[float]]]  # by label-noise setting, then by row: the accuracy of each seed


def verdict(holds: Sequence[bool]) -> Verdict:
    """A claim holds if it does in every setting that can tell; where none can, it is not tested."""
    if not holds:
        return "not tested here"
    return "holds" if all(holds) else "does not hold"


def keeps_the_gain(scores: Scores) -> Claim:
    """LookSAM-5 keeps at least KEPT % of SAM's gain, wherever SAM gains significantly."""
    holds, parts = [], []
    for labels, rows in scores.items():
        gain = difference(rows["sam"], rows["base"])
        if gain.mean <= 0 or not significant({"sam": gain})["sam"]:
            parts.append(f"{labels}: SAM has no clear gain ({gain.mean:+.2f})")
            continue
        share = round(100 * share_kept(rows["base"], rows["sam"], rows["look_sam_5"]))
        holds.append(share >= KEPT)
        parts.append(f"{labels}: {share} % of {gain.mean:+.2f}")
    return Claim("LookSAM-5 keeps SAM's gain in accuracy", verdict(holds), "; ".join(parts))


def beats_the_control(scores: Scores) -> Claim:
    """LookSAM-5 is above SAM-5, which costs the same: significantly somewhere, and nowhere significantly below."""
    found = {labels: difference(rows["look_sam_5"], rows["sam_5"]) for labels, rows in scores.items()}
    clear = {labels: significant({labels: gap})[labels] for labels, gap in found.items()}
    holds = [gap.mean > 0 for labels, gap in found.items() if clear[labels]]
    parts = [
        f"{labels}: {gap.mean:+.2f}{'' if clear[labels] else ' (not significant)'}" for labels, gap in found.items()
    ]
    return Claim("LookSAM-5 is more accurate than SAM-5 at the same cost", verdict(holds or [False]), "; ".join(parts))


def costs_a_fifth_more(times: Mapping[str, Sequence[float]]) -> Claim:
    """The median step time of LookSAM-5 is at most COST_LIMIT times the base's; ``times`` has each row's quartiles."""
    own, sam = (times[row][1] if row in times else None for row in ("look_sam_5", "sam"))
    evidence = f"LookSAM-5 {own:.2f}×, SAM {sam:.2f}×" if own and sam else "not timed"
    return Claim(
        "LookSAM-5 takes about 1.2 times the base's time", verdict([own <= COST_LIMIT] if own else []), evidence
    )
