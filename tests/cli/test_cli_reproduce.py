"""``looksam reproduce``: what it refuses, what it would do, and full scale in small."""

import csv
import json
import pathlib
import re

import pytest

import looksam.trainer.loop
import looksam.trainer.plan
import looksam.trainer.recipes
from looksam.cli import main
from looksam.experiments import EXPERIMENT_NAMES, EXPERIMENTS, full_scale
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import Listing, find
from looksam.trainer.run_folder.run_directory import read_recipe

TABLES = pathlib.Path(looksam.trainer.recipes.__file__).parent / "paper_tables"
SMALL = Recipe(validation=None, train_limit=200, batch_size=100, epochs=1, method="sam")


@pytest.fixture
def cli(capsys, tmp_path):
    def run(*arguments):
        code = main(["reproduce", *arguments, "--out", str(tmp_path / "out")])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


# --- what it is told --------------------------------------------------------------------------------------------


def test_names_are_those_of_the_experiments():
    assert tuple(experiment.name for experiment in EXPERIMENTS.values()) == EXPERIMENT_NAMES
    assert len(EXPERIMENT_NAMES) == 11


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tradeof"], "experiment 'tradeof' is unknown; did you mean tradeoff?\n"),
        ([], "name experiments, or pass --all; there are cifar100, vit, "),
        (["vit", "--all"], "name experiments, or pass --all"),
        (["vit", "--seeds", "1"], "--seeds 1 has no spread; pass at least 2"),
        (["vit", "--seeds", "0"], "--seeds 0 is out of range; pass at least 1"),
        (["vit", "--workers", "0"], "--workers 0 is out of range"),
        (["vit", "--scale", "full", "--microbatch", "-1"], "--microbatch -1 is out of range"),
        (["vit", "--scale", "full", "--mesh", "rows=2"], "--mesh 'rows=2' is not understood; pass e.g. data=8"),
        (["vit", "--scale", "huge"], "invalid choice"),
        (["rivals"], "experiment 'rivals' is not at small scale; pass --scale medium"),
        (["drift", "--scale", "medium"], "experiment 'drift' is not at medium scale; leave out --scale medium"),
        (["vit", "--report-only", "--dry-run"], "--report-only is for stored runs; leave out --dry-run"),
        (["rivals", "--all", "--scale", "medium"], "name experiments, or pass --all; there are rivals"),
    ],
)
def test_bad_arguments(cli, tmp_path, arguments, message):
    code, out, err = cli(*arguments)
    assert code == 2 and message in err and not out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("seeds", "runs"), [((), 2 * (62 + 8 * 5)), (("--seeds", "2"), 2 * (62 + 8 * 2))])
def test_a_dry_run_says_what_there_is_to_do(cli, tmp_path, seeds, runs):
    code, out, _ = cli("cifar100", "--dry-run", *seeds)
    assert code == 0
    pattern = rf"at least {runs} runs to train, about (\d+) minutes of one core; times to measure: resnet\n"
    assert int(re.fullmatch(pattern, out)[1]) > 0
    assert not (tmp_path / "out").exists()


def test_report_only_trains_nothing(cli, tmp_path):
    code, out, _ = cli("vit", "drift", "--report-only")
    assert code == 0 and out.splitlines()[:2] == [f"{name}: runs or times are missing" for name in ("vit", "drift")]
    assert not (tmp_path / "out" / "vit").exists() and (tmp_path / "out" / "report.html").exists()


def test_a_dry_run_of_the_medium_scale_prints_its_plan(cli, tmp_path):
    code, out, _ = cli("--scale", "medium", "--dry-run")
    assert code == 0 and not (tmp_path / "out").exists()
    plan, _, missing = out.rstrip().rpartition("\n\n")
    assert plan.startswith("The plan of the medium scale")
    assert re.fullmatch(r"at least \d+ runs to train.*times to measure: medium-resnet, medium-vit", missing)


def test_experiments_share_their_runs(cli):
    vit, gap = (cli(*names, "--dry-run")[1].split()[0] for names in (["vit"], ["vit", "sam5-gap"]))
    assert vit == gap


# --- full scale -------------------------------------------------------------------------------------------------


def score_in_the_paper(recipe):
    """Read from the files, by the paper's own names of rows and columns."""
    batch = str(recipe.batch_size)

    def cell(table, column, **where):
        rows = list(csv.DictReader((TABLES / f"{table}.csv").read_text().splitlines()))
        found = [row[column] for row in rows if where.items() <= row.items() and row.get(column)]
        return float(found[0]) if found else None

    base = {"sgdm": "sgd_m", "adamw": "adamw", "lamb": "lamb"}[recipe.optimizer]
    row = {"base": base, "sam_k": f"sam_{recipe.k}", "look_sam": f"look_sam_{recipe.k}"}.get(recipe.method, "sam")
    if recipe.optimizer == "sgdm":
        return cell("cifar100", row, model=recipe.model)
    if recipe.optimizer == "adamw":
        return cell("vit", "top1", model=recipe.model, method="sam" if row == "look_sam_1" else row)
    row = "lamb" if recipe.method == "base" else f"lamb+{recipe.method}"
    if recipe.method == "look_layer_sam" and recipe.alpha != 0.7:
        return cell("alpha", f"{recipe.alpha:.1f}", batch=batch)
    if recipe.method == "look_layer_sam" and recipe.rho != 1.0:
        return cell("rho", f"{recipe.rho:.1f}", batch=batch)
    if recipe.randaugment or recipe.batch_size == 65536:
        randaug, mixup = ("yes" if value else "no" for value in (recipe.randaugment, recipe.mixup))
        return cell("augment_64k", batch, method=row, randaug=randaug, mixup=mixup)
    return cell("large_batch", batch, method=row)


@pytest.mark.parametrize("name", EXPERIMENT_NAMES)
def test_full_recipes_are_the_papers_with_its_scores(name):
    experiment = EXPERIMENTS[name]
    moved = experiment.full_settings
    found = full_scale.full_recipes(experiment, mesh="data=2", data_dir="images")
    assert len(found) == len(experiment.full) * len(moved)
    pairs = [(listed, extra) for listed in experiment.full for extra in moved]
    for (listed, extra), (label, (recipe, score)) in zip(pairs, found.items(), strict=True):
        assert label.startswith(listed)
        assert recipe == find(listed).recipe.replace(mesh="data=2", data_dir="images", **extra)
        assert score == score_in_the_paper(recipe), label


def test_every_number_of_the_sensitivity_tables_has_its_run():
    for name, count in (("alpha", 6), ("rho", 8)):
        scores = [score for _, score in full_scale.full_recipes(EXPERIMENTS[name]).values()]
        assert len(scores) == count and None not in scores
    labels = full_scale.full_recipes(EXPERIMENTS["tradeoff"])
    assert [score for _, score in labels.values()] == [79.8, None, None, 79.8, 78.7, None]
    assert next(iter(labels)) == "vit_b16-look_sam-5-k-1"


def test_only_cifar100_is_downloaded():
    for name, expected in (("cifar100", True), ("vit", False)):
        found = full_scale.full_recipes(EXPERIMENTS[name], download=True)
        assert {recipe.download for recipe, _ in found.values()} == {expected}


def test_one_plan_for_each_model_batch_and_augmentation():
    assert list(full_scale.planned(EXPERIMENTS["tradeoff"])) == ["vit_b16-look_sam-5"]
    assert list(full_scale.planned(EXPERIMENTS["vit"])) == [f"vit_{m}-look_sam-5" for m in ("b16", "b32", "s16", "s32")]
    batches = (4096, 8192, 16384, 32768)
    assert list(full_scale.planned(EXPERIMENTS["time"])) == [f"vit_b16-lamb-{b}-look_layer_sam" for b in batches]


def test_a_plan_of_full_scale(cli, monkeypatch):
    asked = []

    def make_plan(recipe, chip, utilisation, notify):
        asked.append((recipe, chip.name))
        return {}

    monkeypatch.setitem(vars(looksam.trainer.plan), "make_plan", make_plan)
    monkeypatch.setitem(vars(looksam.trainer.plan), "as_text", lambda label, result: f"plan of {label}")
    code, out, err = cli("alpha", "bound", "--scale", "full", "--dry-run", "--mesh", "data=2", "--microbatch", "64")
    assert code == 0 and "bound has no full scale" in err
    assert out.startswith("alpha: 6 recipes at full scale\n  vit_b16-lamb-16384-look_layer_sam-alpha-0.5\n")
    names = [f"vit_b16-lamb-{batch}-look_layer_sam" for batch in (16384, 32768)]
    assert re.findall("plan of (.*)", out) == names
    assert asked == [(find(name).recipe.replace(mesh="data=2", microbatch=64), "TPU v3") for name in names]


@pytest.fixture
def shrunk(monkeypatch):
    """Every recipe of full scale becomes a small one."""
    monkeypatch.setattr(full_scale.recipes, "find", lambda name: Listing(SMALL, "table", 79.8, "a minute", "here"))


@pytest.mark.usefixtures("as_users_run_it")
def test_full_scale_is_trained_and_resumes(cli, tmp_path, shrunk):
    arguments = ("drift", "--scale", "full", "--seeds", "2", "--mesh", "data=1")
    code, out, err = cli(*arguments)
    assert code == 0 and "vit_b16-sam, seed 1" in err
    stored = json.loads((tmp_path / "out/drift/full.json").read_text())
    ((name, (first, second)),) = stored["test_accuracy"].items()
    assert name == "vit_b16-sam" and stored["scale"] == "full" and stored["commit"]
    recipes = [read_recipe(path.parent) for path in sorted((tmp_path / "out").rglob("recipe.json"))]
    assert recipes == [SMALL.replace(seed=seed, mesh="data=1") for seed in (0, 1)]
    error = abs(first - second) / 2  # of two: half of what lies between them
    line = f"{(first + second) / 2:.2f} ± {error:.2f}"
    assert f"| vit_b16-sam | {line} | 79.8 |" in (tmp_path / "out/drift/full.md").read_text() and line in out
    again = cli(*arguments)
    assert again[0] == 0 and again[1] == out
    assert again[2].count("resuming from step 2") == 2  # nothing is trained anew
    assert json.loads((tmp_path / "out/drift/full.json").read_text()) == stored


def test_a_signal_ends_the_whole_command(cli, monkeypatch, tmp_path, shrunk):
    begun = []

    def run(recipe, folder, **options):
        begun.append(folder.name)
        return {"status": "interrupted", "signal": 15, "test_accuracy": None}

    monkeypatch.setattr(looksam.trainer.loop, "run", run)
    assert cli("drift", "sam5-gap", "--scale", "full")[0] == 143
    assert begun == ["vit_b16-sam-seed0"]
    assert not list(tmp_path.rglob("full.*"))


def test_ctrl_c_says_what_is_kept(cli, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("looksam.experiments.reproduction.Reproduction.fill", interrupted)
    code, _, err = cli("drift")
    assert code == 130
    assert err == f"looksam: interrupted; finished runs are kept in {tmp_path}/out/runs, and the same command resumes\n"
