"""What reports say, on runs whose accuracies are known: every number against one computed here."""

import csv
import itertools
import math
import pathlib
from collections import Counter

import numpy as np
import pytest
from synthetic_runs import BEST, ERROR, SEEDS, World, filled, lines_of

import looksam.trainer.recipes
from looksam.experiments import EXPERIMENTS, small_scale, table_augment_64k, table_sensitivity
from looksam.experiments.engine.runs import Store
from looksam.experiments.report.text import entry_text
from looksam.experiments.reproduction import sections, summary, texts
from looksam.methods import METHODS
from looksam.trainer.recipe import Recipe

TABLES = pathlib.Path(looksam.trainer.recipes.__file__).parent / "paper_tables"
NOISES = {"clean labels": 0.0, "30 % random labels": 0.3}
WORLD = World()
ALPHA = BEST["lamb"][small_scale.LAYER][1]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """All eleven experiments, filled by the command's own way."""
    store, lines = Store(tmp_path_factory.mktemp("runs")), []
    with pytest.MonkeyPatch.context() as monkeypatch:
        rounds = filled(store, EXPERIMENTS.values(), WORLD, monkeypatch, lines.append)
    return store, rounds, lines


@pytest.fixture(scope="module")
def report(stored):
    return {section.name: section for section in sections(stored[0], SEEDS)}


def paper(table):
    """The rows of a table of the paper, as they are in the file."""
    return list(csv.DictReader((TABLES / f"{table}.csv").read_text().splitlines()))


def is_mean(entry, value):
    assert (entry.value, entry.error) == (pytest.approx(value, abs=1e-9), pytest.approx(ERROR)), (entry, value)


def is_paper(entry, text, ratio_to=None):
    if not text:
        assert entry is None
    elif ratio_to is None:
        assert (entry_text(entry), entry.error) == (f"{float(text):.1f}", None)
    else:
        assert entry.value == pytest.approx(float(text) / float(ratio_to))


def level(base, method, **changes):
    return WORLD.level(base.replace(method=method, **changes))


ROWS = {"SAM": ("sam", 5), **{f"SAM-{k}": ("sam_k", k) for k in (5, 10, 20)}}
ROWS |= {f"LookSAM-{k}": ("look_sam", k) for k in (5, 10, 20)}
AS_AT_5 = ", as at k = 5"


def expected(base, name, **changes):
    """The accuracy of a row by its name in the table."""
    own = name.removesuffix(AS_AT_5)
    method, k = ROWS.get(own, ("base", 5))
    top = level(base, method, k=k, **changes)
    if own == name:
        return top
    (rho, alpha), (own_rho, own_alpha) = (BEST[base.optimizer][METHODS[method].row_name(each)] for each in (5, k))
    return top - abs(math.log(rho / own_rho)) - (abs(alpha - own_alpha) if alpha else 0.0)


def test_stages_come_in_order_and_nothing_is_asked_for_twice(stored, monkeypatch, tmp_path):
    store, rounds, lines = stored
    last = {}  # the round in which a row's tuning ended
    for i, runs in enumerate(rounds):
        for run in runs:
            recipe = run.recipe
            place = recipe.optimizer, recipe.batch_size, recipe.label_noise
            if run.kind == "tune":
                last[place, recipe.method, recipe.k, recipe.scaling] = i
                assert recipe.method == "base" or i > last[place, "base", 5, "normalized"]
            else:
                k = recipe.k if recipe.k in (10, 20) else 5
                assert i > last[place, recipe.method, k, recipe.scaling]
    assert {run.kind for run in rounds[-1]} == {"train"} and len(rounds) == 4 + 7 + 1  # base, rules, reports
    asked = [(run.key, run.recipe.seed) for runs in rounds for run in runs]
    assert len(asked) == len(set(asked)) == len(lines)
    assert all(run.recipe.data_dir == "data" for runs in rounds for run in runs)
    assert f"[{len(asked)} done, 0 to go, 0:00:00 left]" in lines[-1]
    assert filled(store, EXPERIMENTS.values(), WORLD, monkeypatch) == []  # a second call has nothing to do


def test_a_summary_has_every_run(stored):
    runs = summary(EXPERIMENTS["cifar100"], stored[0], SEEDS)["runs"]
    tuned = [entry for key, entry in runs.items() if key.startswith("tune")]
    trained = [entry for key, entry in runs.items() if key.startswith("train")]
    settings = {"base": 7, "sam": 9, "sam_k": 3 * 9, "look_sam": 11 + 2 * 12}  # tried for all k
    assert Counter(entry["recipe"].get("method", "base") for entry in tuned) == {n: 2 * m for n, m in settings.items()}
    assert len(trained) == 2 * 12
    for entry in [*tuned, *trained]:
        recipe = Recipe(**entry["recipe"])
        expected = [WORLD.accuracy(recipe.replace(seed=seed)) for seed in entry["seeds"]]
        np.testing.assert_allclose(entry["accuracy"], expected)
    assert {tuple(entry["seeds"]) for entry in tuned} == {(100,)}
    assert {tuple(entry["seeds"]) for entry in trained} == {(0, 1, 2)}


def test_cifar100(report):
    accuracy = lines_of(report["cifar100"].tables[0])
    others = [f"{name}-{k}{end}" for k in (10, 20) for name in ("SAM", "LookSAM") for end in ("", AS_AT_5)]
    assert list(accuracy) == ["SGD-M", "SAM", "SAM-5", "LookSAM-5", *others]
    theirs = {row["model"]: row for row in paper("cifar100")}
    for name, row in accuracy.items():
        method, k = ROWS.get(name.removesuffix(AS_AT_5), ("base", 5))
        for column, noise in NOISES.items():
            is_mean(row[f"{column}, test %"], expected(small_scale.RESNET, name, label_noise=noise))
        cost = {"base": 1.0, "sam": 2.0}.get(method, 1 + 1 / k)
        assert row["gradients per step"].value == pytest.approx(cost)
        assert row["relative step time"].value == pytest.approx(cost + 0.05)
        key = {"SGD-M": "sgd_m"}.get(name) or name.lower().replace("looksam", "look_sam").replace("-", "_")
        for title, model in (("ResNet-18", "resnet18"), ("ResNet-50", "resnet50"), ("WRN-28-10", "wrn28_10")):
            is_paper(row[f"paper: {title}"], theirs[model][key] if AS_AT_5 not in name else "")


def test_vit(report):
    theirs = {(row["model"], row["method"]): row for row in paper("vit")}
    nothing = {"top1": "", "seconds_per_epoch": ""}  # of k = 20
    for name, row in lines_of(report["vit"].tables[0]).items():
        is_mean(row["30 % random labels, test %"], expected(small_scale.VIT, name, label_noise=0.3))
        key = {"AdamW": "adamw"}.get(name) or name.lower().replace("looksam", "look_sam").replace("-", "_")
        for title in ("B-16", "B-32", "S-16", "S-32"):
            model = f"vit_{title.lower().replace('-', '')}"
            is_paper(row[f"paper: ViT-{title}"], theirs.get((model, key), nothing)["top1"])
        seconds = theirs.get(("vit_b16", key), nothing)["seconds_per_epoch"]
        is_paper(row["paper: relative step time, ViT-B-16"], seconds, "59.7")


def test_selected_is_what_has_the_best_held_out_accuracy(report):
    for name, optimizer in (("cifar100", "sgdm"), ("vit", "adamw")):
        for (column, method), row in lines_of(report[name].tables[1], 2).items():
            key, k = ROWS.get(method, ("base", 5))
            best = BEST[optimizer]
            rho, alpha = (None, None) if key == "base" else best[METHODS[key].row_name(k)]
            shown = [None if x is None else f"{x:g}" for x in (best["base"], best["weight_decay"], rho, alpha)]
            assert [row["learning rate"], row["weight decay"], row["ρ"], row["α"]] == shown
            base = small_scale.RESNET if name == "cifar100" else small_scale.VIT
            recipe = base.replace(method=key, k=k, label_noise=NOISES[column])
            assert row["held-out %"].value == pytest.approx(WORLD.level(recipe))
            assert row["settings tried"] == {"base": "7", "look_sam": "11" if k == 5 else "12"}.get(key, "9")
            assert (row["training loss"].value, row["training loss"].error) == (
                pytest.approx(0.01),
                pytest.approx(1e-3),
            )


def test_nothing_that_is_selected_is_at_the_edge_of_what_was_tried(stored):
    studies = (small_scale.resnet_studies(), small_scale.vit_studies(), small_scale.lamb_studies())
    for study in (study for group in studies for study in group.values()):
        for row, start in study.starts.items():
            (selected, _), *others = study.tried(stored[0], row)
            assert selected.keys() == start.keys() | {"learning_rate", "weight_decay"}
            for name, value in selected.items():
                tried = [settings[name] for settings, _ in others]
                assert min(tried) < value < max(tried)


def test_large_batch(report):
    section = report["large-batch"]
    theirs = {row["method"]: row for row in paper("large_batch")}
    keys = {"LAMB": "lamb", "LAMB + SAM": "lamb+sam", "LAMB + LookSAM-5": "lamb+look_sam"}
    keys |= {"LAMB + Look-LayerSAM, normalized": "lamb+look_layer_sam"}
    for (column, noise), table in zip(NOISES.items(), section.tables, strict=False):
        assert table.title.endswith(column)
        for name, row in lines_of(table).items():
            method = {"LAMB": "base", "LAMB + SAM": "sam", "LAMB + LookSAM-5": "look_sam"}.get(name, "look_layer_sam")
            scaling = name.partition(", ")[2] or "normalized"
            for batch in small_scale.LAMB_BATCHES:
                expected = level(small_scale.LAMB, method, scaling=scaling, batch_size=batch, label_noise=noise)
                is_mean(row[f"batch {batch}"], expected)
            for batch in (4096, 8192, 16384, 32768):
                is_paper(row[f"paper: {batch:,}"], theirs[keys[name]][str(batch)] if name in keys else "")
    selected = lines_of(section.tables[2], 3)[
        "clean labels", str(small_scale.LAMB_BATCHES[-1]), "LAMB + Look-LayerSAM, literal"
    ]
    expected = BEST["lamb"]["base"], *BEST["lamb"]["look_layer_sam:literal"]
    assert (selected["learning rate"], selected["ρ"], selected["α"]) == tuple(f"{value:g}" for value in expected)
    places = 2 * len(small_scale.LAMB_BATCHES)
    counted = f"best mean in the {places} settings: normalized {places}, literal 0, adaptive 0; "
    assert f"{counted}literal is 1.50 below normalized at batch {small_scale.LAMB_BATCHES[0]}" in section.answers[-1]
    assert "adaptive is" not in section.answers[-1]  # 0.1 below: within the spread


def test_augment_64k(report):
    theirs = {(row["method"], row["randaug"], row["mixup"]): row for row in paper("augment_64k")}
    augmented = {"randaugment": 2}, {"randaugment": 2, "mixup": 0.2}
    expected = {
        "LAMB": ("base", {}, ("lamb", "no", "no")),
        "+ Look-LayerSAM-5": ("look_layer_sam", {}, ("lamb+look_layer_sam", "no", "no")),
        "+ RandAugment": ("look_layer_sam", augmented[0], ("lamb+look_layer_sam", "yes", "no")),
        "+ Mixup": ("look_layer_sam", augmented[1], ("lamb+look_layer_sam", "yes", "yes")),
    }
    lines = lines_of(report["augment-64k"].tables[0])
    assert list(lines) == list(expected)
    for name, (method, extra, key) in expected.items():
        for (column, noise), (ours, full) in itertools.product(NOISES.items(), table_augment_64k.BATCHES.items()):
            level_here = level(small_scale.LAMB, method, batch_size=ours, label_noise=noise, **extra)
            is_mean(lines[name][f"{column}, batch {ours}"], level_here)
            is_paper(lines[name][f"paper: {full:,}"], theirs[key][str(full)])
    where = f"clean labels, batch {next(iter(table_augment_64k.BATCHES))}"
    parts = "Look-LayerSAM-5 +2.50; RandAugment +1.50; Mixup +0.10 (not significant)"
    assert report["augment-64k"].answers[0] == f"{where}: each against the row above it: {parts}."


def test_time(report):
    theirs = {row["method"]: row for row in paper("time_hours")}
    keys = {"LAMB": "lamb", "LayerSAM": "lamb+layer_sam", "Look-LayerSAM-5": "lamb+look_layer_sam"}
    for name, row in lines_of(report["time"].tables[0]).items():
        cost = {"LAMB": 1.0, "LayerSAM": 2.0}.get(name, 1.2)
        assert [row[what].value for what in ("relative FLOPs", "gradients per step")] == [cost, cost]
        quartiles = f"{cost - 0.01:.2f}–{cost + 0.1:.2f}"
        assert (row["relative step time"].value, row["interquartile range"]) == (cost + 0.05, quartiles)
        for batch in (4096, 8192, 16384, 32768):
            is_paper(row[f"paper: hours, {batch:,}"], theirs[keys[name]][str(batch)])
        is_paper(row["paper: relative time"], theirs[keys[name]]["4096"], theirs["lamb"]["4096"])
    hours = [float(theirs[key]["4096"]) for key in keys.values()]
    assert (
        f"The paper's hours give {hours[2] / hours[0]:.2f} and {hours[1] / hours[0]:.2f}" in report["time"].answers[0]
    )
    assert "takes 1.25 times as long as one of LAMB, with 1.20 times the FLOPs" in report["time"].answers[0]


@pytest.mark.parametrize(("name", "off"), [("alpha", lambda x: abs(x - ALPHA)), ("rho", lambda x: abs(math.log(x)))])
def test_sensitivity(report, name, off):
    theirs = {row["batch"]: row for row in paper(name)}
    lines = lines_of(report[name].tables[0])
    for label, row in lines.items():
        value = float(label.split()[0])
        for (column, noise), (ours, full) in itertools.product(NOISES.items(), table_sensitivity.BATCHES.items()):
            top = level(small_scale.LAMB, "look_layer_sam", batch_size=ours, label_noise=noise)
            is_mean(row[f"{column}, batch {ours}"], top - off(value))
            is_paper(row[f"paper: {full:,}"], theirs[str(full)].get(f"{value:.1f}"))
    for column in theirs["16384"].keys() - {"batch"}:  # every value of the paper has its row
        assert any(f"{float(label.split()[0]):.1f}" == column for label in lines)
    answer = report[name].answers[0]
    best = f"({level(small_scale.LAMB, 'look_layer_sam', batch_size=next(iter(table_sensitivity.BATCHES))):.2f} %)"
    if name == "alpha":  # 0.7 away: t = 4.95, p = 0.008, and 10 pairs are compared
        assert f"best at 0.3 {best}; no other value is significantly worse; the means lie within 0.70" in answer
    else:
        assert f"best at 1 × ρ {best}" in answer and "within 0.69 points" in answer


def test_tradeoff(report):
    theirs = {row["method"]: row for row in paper("throughput")}
    for k, row in lines_of(report["tradeoff"].tables[0]).items():
        for column, noise in NOISES.items():
            is_mean(row[f"{column}, test %"], level(small_scale.VIT, "look_sam", k=int(k), label_noise=noise))
        assert row["throughput relative to k = 1"].value == pytest.approx(2.05 / (1 + 1 / int(k) + 0.05))
        printed = theirs.get("sam" if k == "1" else f"look_sam_{k}", {"top1": "", "images_per_second": ""})
        is_paper(row["paper: ViT-B-16, top-1 %"], printed["top1"])
        is_paper(
            row["paper: throughput relative to k = 1"], printed["images_per_second"], theirs["sam"]["images_per_second"]
        )
    assert "-0.20 at k = 5" in report["tradeoff"].answers[0] and "1.64-fold at k = 5" in report["tradeoff"].answers[0]


def test_sam5_gap(report):
    theirs = {row["method"]: row["top1"] for row in paper("vit") if row["model"] == "vit_b16"}
    for (column, noise), table in zip(NOISES.items(), report["sam5-gap"].tables, strict=True):
        assert table.title.endswith(column)
        for name, row in lines_of(table).items():
            method, k = ROWS.get(name, ("base", 5))
            end = level(small_scale.VIT, method, k=k, label_noise=noise)
            for i in range(10):
                is_mean(row[f"epoch {6 * (i + 1)}"], end - 9 + i)
            key = {"base": "adamw"}.get(method) or name.lower().replace("looksam", "look_sam").replace("-", "_")
            is_paper(row["paper: ViT-B-16 at the end"], theirs[key])
    assert report["sam5-gap"].answers[0].endswith("+1.10 at epoch 18, +1.10 at epoch 36, +1.10 at epoch 60.")


def test_drift(report):
    for table in report["drift"].tables:
        lines = lines_of(table, 2)
        assert len(lines) == 12
        for (phase, part), row in lines.items():
            tenths = {"first 30 %": (0, 1, 2), "middle 40 %": (3, 4, 5, 6), "last 30 %": (7, 8, 9)}[phase]
            norm = np.mean([1 + 0.1 * i for i in tenths])
            absolute = {"g": 3.0, "g_s": 2.0, "g_h": 1.5, "g_v": 0.5}[part]
            assert row["norm"].value == pytest.approx(norm) and row["norm"].error == pytest.approx(ERROR / 10)
            assert row["absolute drift"].value == pytest.approx(absolute * norm)
            assert (row["cosine"].value, row["cosine"].error) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-12))
    assert report["drift"].answers[0] == (
        "clean labels, first 30 %: g_v is the slow one in absolute terms (0.550 against 1.650 of g_h and 2.200 of g_s) "
        "and is the slow one in relative terms (0.800 against 1.200 of g_h and 1.300 of g_s)."
    )


def test_bound(report):
    for (model, _, _), row in lines_of(report["bound"].tables[0], 3).items():
        d = {"ViT": 114_004, "ResNet": 44_700}[model]
        weights = d * math.log(1 + 10**2 / 0.05**2 * (1 + math.sqrt(math.log(1200) / d)) ** 2)
        slack = math.sqrt((weights + 4 * math.log(1200 / 0.05) + 8 * math.log(6 * 1200 + 3 * d)) / 1199)
        assert row["parameters"] == f"{d:,}"
        assert (row["slack"].value, row["weights"].value) == (pytest.approx(slack), pytest.approx(weights))
        assert row["worst loss"].value == pytest.approx(0.03) and row["bound"].value == pytest.approx(slack + 0.03)
    assert report["bound"].answers[0].startswith("Nothing: the slack alone is")


def test_figures(report):
    names = [figure.name for section in report.values() for figure in section.figures]
    assert len(names) == len(set(names))
    assert {name: len(section.figures) for name, section in report.items()} == {
        **{"cifar100": 4, "vit": 4, "large-batch": 2, "augment-64k": 0, "time": 0, "alpha": 1},
        **{"rho": 1, "tradeoff": 2, "sam5-gap": 2, "drift": 4, "bound": 0},
    }
    cost = report["cifar100"].figures[0]
    look = next(series for series in cost.series if series.label == "LookSAM-k")
    np.testing.assert_allclose(look.x, [1.25, 1.15, 1.1])
    np.testing.assert_allclose(look.y, [61.8, 61.7, 61.0])
    np.testing.assert_allclose(look.error, [ERROR] * 3)


def test_sections_as_text(report):
    for section in report.values():
        files = texts(section)
        assert files.keys() == {"report.md", *(f"table-{i + 1}.csv" for i in range(len(section.tables)))}
        assert section.question in files["report.md"]
        assert "nan" not in files["report.md"].lower()
        assert section.source["scale"] == "small" and section.source["seeds"] == SEEDS
        if section.name != "time":
            assert section.source["commits"] and section.source["jax"]
    assert all(isinstance(answer, str) and answer.endswith(".") for s in report.values() for answer in s.answers)
