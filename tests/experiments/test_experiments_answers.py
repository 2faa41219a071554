"""The sentences of reports on both sides of every threshold, and runs that are missing, interrupted or lost."""

import re

import numpy as np
import pytest
from scipy import stats
from synthetic_runs import BEST, JITTER, SEEDS, World, filled, lines_of

from looksam.arguments import SCALINGS
from looksam.experiments import EXPERIMENTS
from looksam.experiments.engine.pool import missing
from looksam.experiments.engine.runs import Store
from looksam.experiments.report.text import entry_text

CIFAR100, DRIFT = EXPERIMENTS["cifar100"], EXPERIMENTS["drift"]


@pytest.fixture
def world(tmp_path, monkeypatch):
    """One experiment's section in another world."""

    def section(experiment, **changes):
        store = Store(tmp_path / "runs")
        filled(store, [experiment], World(**changes), monkeypatch)
        return experiment.section(store, SEEDS)

    return section


def test_sam_gains_and_how_much_of_it_is_kept(world):
    answers = world(CIFAR100, kept={5: 0.8, 10: 0.798, 20: -0.1}).answers
    base = 60 + np.array(list(JITTER.values()))
    low, high = stats.ttest_ind(base + 2, base, equal_var=False).confidence_interval(0.95)
    assert answers[:4] == [
        f"clean labels: SAM gains 2.00 points against the base (95 % interval {low:+.2f} to {high:+.2f}), significant.",
        "clean labels: LookSAM-5 keeps 80.0 % of SAM's gain, at least our threshold of 80 %.",
        "clean labels: LookSAM-10 keeps 79.8 % of SAM's gain, less than our threshold of 80 %.",
        "clean labels: LookSAM-20 keeps -10.0 % of SAM's gain, less than our threshold of 80 %.",
    ]
    assert answers[4] == (
        "clean labels: LookSAM-5 is 1.60 points above base (significant), 0.70 points above SAM-5 (significant), "
        "0.40 points below SAM (not significant)."
    )
    assert "LookSAM-20 is 0.20 points below base (not significant)" in answers[6]
    (rho, alpha), (own_rho, own_alpha) = (BEST["sgdm"][f"look_sam_{k}"] for k in (5, 10))
    less = abs(np.log(rho / own_rho)) + abs(alpha - own_alpha)
    assert answers[7] == (
        f"clean labels: at the settings of k = 5, LookSAM-10 is {less:.2f} points below the same tuned at k = 10 "
        f"(significant), LookSAM-20 is {less:.2f} points below the same tuned at k = 20 (significant)."
    )


@pytest.mark.parametrize(("gain", "says"), [(0.5, "gains 0.50"), (-0.1, "loses 0.10"), (-2.0, "loses 2.00")])
def test_sam_without_a_clear_gain(world, gain, says):
    answers = world(CIFAR100, gain=gain).answers
    verdict = "significant" if gain == -2.0 else "not significant"
    assert re.fullmatch(rf"clean labels: SAM {says} points .*, {verdict}\.", answers[0])
    assert answers[1] == "clean labels: SAM has no clear gain here, so there is none for LookSAM to keep."
    assert not any("keeps" in answer for answer in answers)


def test_verdicts_are_those_of_holm(world):
    """Each of the 12 comparisons of a label-noise setting, corrected in another way: running maxima of (m - i) p."""
    answers = world(CIFAR100, gain=1.3).answers
    rows = {"base": 0.0, "sam": 1.3} | {f"sam_{k}": 1.3 * (0.5 - 0.01 * k) for k in (5, 10, 20)}
    rows |= {f"look_{k}": 1.3 * World().kept[k] for k in (5, 10, 20)}
    pairs = [("sam", "base"), *((f"look_{k}", other) for k in (5, 10, 20) for other in ("base", f"sam_{k}", "sam"))]
    for k in (10, 20):
        (rho, alpha), (own_rho, own_alpha) = (BEST["sgdm"][f"look_sam_{each}"] for each in (5, k))
        rows[f"look_{k} at 5"] = rows[f"look_{k}"] - abs(np.log(rho / own_rho)) - abs(alpha - own_alpha)
        pairs.append((f"look_{k} at 5", f"look_{k}"))
    jitter = np.array(list(JITTER.values()))
    p = np.array([stats.ttest_ind(rows[a] + jitter, rows[b] + jitter, equal_var=False).pvalue for a, b in pairs])
    order = np.argsort(p)
    adjusted = np.empty(12)
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(12, 0, -1))
    words = [word for answer in answers[:8] for word in re.findall(r"not significant|significant", answer)]
    assert words == ["significant" if value < 0.05 else "not significant" for value in adjusted]
    assert 0 < sum(adjusted < 0.05) < 12


def test_g_v_is_not_the_slow_one(world):
    answer = world(DRIFT, slow=False).answers[0]
    assert "g_v is not the slow one in absolute terms (1.870 against 1.650 of g_h and 2.200 of g_s)" in answer
    assert "is not the slow one in relative terms (1.390 against 1.200 of g_h and 1.300 of g_s)" in answer


def test_scalings_that_do_not_differ(tmp_path, monkeypatch):
    store, experiment = Store(tmp_path), EXPERIMENTS["large-batch"]
    filled(store, [experiment], World(scalings=dict.fromkeys(SCALINGS, 1.0)), monkeypatch)
    assert "none differs significantly from the normalized reading" in experiment.section(store, SEEDS).answers[-1]


def test_a_value_that_is_significantly_worse(tmp_path, monkeypatch):
    class Steep(World):
        def accuracy(self, recipe):
            return super().accuracy(recipe) - 5 * (recipe.alpha > 0.6 and recipe.method == "look_layer_sam")

    store, experiment = Store(tmp_path), EXPERIMENTS["alpha"]
    filled(store, [experiment], Steep(), monkeypatch)
    assert "significantly worse: 0.7, 1;" in experiment.section(store, SEEDS).answers[0]


def test_a_run_that_was_lost_does_not_stop_the_report(tmp_path, monkeypatch):
    class Lost(World):
        def record(self, run):
            lost = {"train_loss_at_end": None, "sharpness_train": None, "weight_norm": None}
            here = run.kind == "train" and run.recipe.method == "sam" and run.recipe.seed == 1
            return super().record(run) | (lost if here else {})

    store, bound = Store(tmp_path), EXPERIMENTS["bound"]
    filled(store, [bound], Lost(), monkeypatch)
    rows = lines_of(bound.section(store, SEEDS).tables[0], 3)
    assert rows["ViT", "clean labels", "SAM"]["bound"] is None
    assert rows["ViT", "clean labels", "AdamW"]["bound"].value > 1
    selected = lines_of(CIFAR100.section(store, SEEDS).tables[1], 2)
    assert entry_text(selected["clean labels", "SAM"]["training loss"]) == "nan ± nan"


def test_runs_that_depend_on_others_are_told_apart(tmp_path):
    ready, later = missing(Store(tmp_path), [CIFAR100.stages], SEEDS)
    assert len(ready) == 2 * 3 and {run.recipe.method for run in ready} == {"base"}
    # By label-noise setting at least seven settings per row, nine with α.
    assert sum(run.kind == "tune" for run in later) == 2 * (5 * 7 + 3 * 9) - len(ready)
    assert sum(run.kind == "train" for run in later) == 2 * 8 * SEEDS  # all start as at k = 5


def test_an_interrupted_call_resumes(tmp_path, monkeypatch):
    class OneBreaks(World):
        def record(self, run):
            if run.recipe.learning_rate == BEST["sgdm"]["base"]:
                raise KeyboardInterrupt
            return super().record(run)

    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        filled(store, [DRIFT, CIFAR100], OneBreaks(), monkeypatch)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept
    asked = {run.key for runs in filled(Store(tmp_path), [DRIFT, CIFAR100], World(), monkeypatch) for run in runs}
    assert not {f"{key}.json" for key in asked} & kept


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_nothing_is_reported_of_an_empty_store(tmp_path, name):
    with pytest.raises(ValueError, match="run `looksam reproduce"):
        EXPERIMENTS[name].section(Store(tmp_path), SEEDS)
