"""The verdicts on the paper's claims: when they hold, when not, and when a measurement cannot tell."""

import pytest

from looksam.experiments import claims
from looksam.experiments.overview import overview
from looksam.experiments.report.document import Section


def around(mean):
    return [mean - 0.1, mean, mean + 0.1]


def rows(**means):
    return {row: around(mean) for row, mean in means.items()}


@pytest.mark.parametrize(
    ("sam", "look", "verdict", "numbers"),
    [
        (70.0, 68.0, "holds", "80 % of +10.00"),
        (70.0, 67.9, "does not hold", "79 % of +10.00"),
        (60.05, 68.0, "not tested here", "SAM has no clear gain (+0.05)"),
        (50.0, 68.0, "not tested here", "SAM has no clear gain (-10.00)"),
    ],
)
def test_most_of_a_clear_gain_has_to_be_kept(sam, look, verdict, numbers):
    found = claims.keeps_the_gain({"clean": rows(base=60.0, sam=sam, look_sam_5=look)})
    assert (found.verdict, found.evidence) == (verdict, f"clean: {numbers}")


def test_one_setting_is_enough_to_refute_and_one_that_cannot_tell_does_not():
    kept, lost, unclear = (
        {"base": 60.0, "sam": sam, "look_sam_5": look} for sam, look in [(70, 70), (70, 61), (60, 60)]
    )
    assert claims.keeps_the_gain({"a": rows(**kept), "b": rows(**unclear)}).verdict == "holds"
    assert claims.keeps_the_gain({"a": rows(**kept), "b": rows(**lost)}).verdict == "does not hold"


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [((5, 5), "holds"), ((5, 0.05), "holds"), ((5, -5), "does not hold"), ((0.05, -0.05), "does not hold")],
)
def test_a_gain_has_to_be_significant_somewhere_and_a_loss_nowhere(gaps, verdict):
    scores = {str(i): rows(look_sam_5=50 + gap, sam_5=50) for i, gap in enumerate(gaps)}
    assert claims.beats_sam_5(scores).verdict == verdict


def test_the_best_the_robust_and_the_cheap():
    scores = {"one": rows(a=50, b=51)}
    assert claims.is_best("b", scores, "b", "b").verdict == "holds"
    assert claims.is_best("a", scores, "a", "a").evidence == "one: a 50.00 %, the best 51.00 %"
    assert claims.is_robust("r", scores).verdict == "holds"
    assert claims.is_robust("r", {"one": rows(a=50, b=52.5)}).verdict == "does not hold"
    cost = [claims.costs_a_fifth_more({"x": [1, time, 2]}, "x", "X", "here").verdict for time in (1.3, 1.31)]
    assert cost == ["holds", "does not hold"]
    assert claims.costs_a_fifth_more({}, "x", "X", "here").verdict == "not tested here"


def test_a_summary_of_sections_without_claims_has_no_table():
    assert overview([Section("a", "A", "?", ["So."])]).tables == []
