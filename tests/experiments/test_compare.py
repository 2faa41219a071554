"""``looksam compare`` from the command line, in small."""

import gc
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from looksam.cli import main
from looksam.cli.work_progress import WorkProgress
from looksam.experiments.comparison import _of_rule, compare, read_results, selected, starting_settings
from looksam.experiments.engine.runs import Store
from looksam.experiments.report.comparison_report import as_text
from looksam.methods import METHODS
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes.small import DIGITS_RECIPES, DIGITS_SELECTED

pytestmark = pytest.mark.usefixtures("as_users_run_it")


def test_methods_side_by_side_with_lamb(tmp_path, capsys):
    layer_rules = ["--methods", "base", "look_layer_sam", "--optimizer", "lamb", "--learning-rate", "0.02"]
    short = ["--epochs", "2", "--seeds", "2", "--rounds", "1", "--out", str(tmp_path)]
    assert main(["compare", "digits", *layer_rules, *short]) == 0
    result = json.loads((tmp_path / "results.json").read_text())["digits"]
    assert as_text(result) in capsys.readouterr().out
    assert list(result["methods"]) == ["base", "look_layer_sam"]
    for outcome in result["methods"].values():
        assert np.shape(outcome["curve"]) == (2, 2) and len(outcome["sharpness_test"]) == 2
        assert outcome["accuracy"] == outcome["curve"][-1]
        assert all(30 < accuracy <= 100 for accuracy in outcome["accuracy"])
    assert result["methods"]["base"]["time_ratio"] == [1.0, 1.0, 1.0]
    assert result["methods"]["look_layer_sam"]["gradients_per_step"] == pytest.approx(1.2)
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_rows_may_name_their_period_and_start(tmp_path, capsys):
    rows = ["base", "sam_3", "sam@0.5", "look_sam_2@0.75", "asam", "msam"]
    short = ["--epochs", "4", "--batch-size", "200", "--seeds", "2", "--rounds", "1", "--out", str(tmp_path)]
    short += ["--learning-rate", "0.06"]
    assert main(["compare", "digits", "--methods", *rows[:2], ",".join(rows[2:]), *short]) == 0
    result = json.loads((tmp_path / "results.json").read_text())["digits"]
    gradients = {row: outcome["gradients_per_step"] for row, outcome in result["methods"].items()}
    assert gradients == pytest.approx(dict(zip(rows, (1, 4 / 3, 1.5, 1.125, 2, 1), strict=True)))
    settings = {row: outcome["settings"] for row, outcome in result["methods"].items()}
    tuned = {name: _of_rule(found) for name, found in DIGITS_SELECTED["digits"].items()}  # the rate is given
    assert settings["sam@0.5"] == tuned["sam"] | {"start": 0.5}
    assert settings["look_sam_2@0.75"] == tuned["look_sam"] | {"k": 2, "start": 0.75}
    assert settings["msam"] == {"rho": pytest.approx(5 * tuned["sam"]["rho"])}
    curves = {row: np.array(outcome["curve"]) for row, outcome in result["methods"].items()}
    np.testing.assert_array_equal(curves["sam@0.5"][:2], curves["base"][:2])  # of the epochs before its start
    assert (curves["sam@0.5"][2:] != curves["base"][2:]).any()
    table = capsys.readouterr().out
    assert all(f"{name}  " in table for name in ("SAM-3", "SAM, last 50 %", "LookSAM-2, last 25 %", "MSAM"))
    late = next(line for line in table.splitlines() if line.startswith("LookSAM-2, last 25 %"))
    assert " 1.12  " in late  # of 1.125


def test_a_tuned_learning_rate_is_kept_unless_another_is_given():
    recipe, tuned = DIGITS_RECIPES["digits"], DIGITS_SELECTED["digits"]
    assert selected("digits", recipe, ["sam"]) == {"base": tuned["base"], "sam": tuned["sam"]}
    for changes in ({"learning_rate": 0.123}, {"weight_decay": 0.123}, {"optimizer": "lamb"}):
        found = selected("digits", recipe.replace(**changes), ["sam"])
        assert found == {"base": {}, "sam": {"rho": tuned["sam"]["rho"]}}


def test_float64_does_not_depend_on_the_compiler(tmp_path):
    """Accuracies are the same to the last image, and parameters are float64 indeed."""
    arguments = ["compare", "digits", "--methods", "sam", "--dtype", "float64", "--epochs", "2", "--seeds", "1"]
    variables = [{"XLA_FLAGS": flags} for flags in ("", "--xla_backend_optimization_level=0")]
    curves = []
    for i, changes in enumerate(variables):
        out = tmp_path / str(i)
        command = [sys.executable, "-m", "looksam.cli", *arguments, "--rounds", "1", "--quiet", "--out", str(out)]
        subprocess.run(command, env=os.environ | changes, check=True, capture_output=True)
        methods = json.loads((out / "results.json").read_text())["digits"]["methods"]
        curves.append({name: (row["curve"], row["sharpness_train"]) for name, row in methods.items()})
    assert curves[0]["sam"][0] == curves[1]["sam"][0]
    assert curves[0]["sam"][1] == pytest.approx(curves[1]["sam"][1], rel=1e-9)


class Interrupted:
    """Lets Ctrl-C come when a row has begun to train."""

    def __init__(self, monkeypatch, row):
        self._update, self.row, self.titles = WorkProgress.update, row, []
        monkeypatch.setattr(WorkProgress, "update", lambda progress, *arguments: self(progress, *arguments))

    def __call__(self, progress, title, done, total):
        self.titles.append(title)
        if title == self.row:
            raise KeyboardInterrupt
        self._update(progress, title, done, total)


def without_times(path):
    results = json.loads(path.read_text())["digits"]
    return results | {"methods": {name: row | {"time_ratio": None} for name, row in results["methods"].items()}}


def test_an_interrupted_comparison_trains_only_what_is_missing(tmp_path, capsys, monkeypatch):
    short = ["compare", "digits", "--methods", "sam", "--epochs", "2", "--seeds", "2", "--rounds", "1"]
    assert main([*short, "--out", str(tmp_path / "whole")]) == 0
    out, interrupted = tmp_path / "resumed", Interrupted(monkeypatch, "base")
    assert main([*short, "--out", str(out)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "looksam: interrupted before the first run had ended"
    interrupted.row = "sam"
    assert main([*short, "--out", str(out)]) == 130
    kept = f"looksam: interrupted; finished runs are kept in {out}/runs, and the same command resumes"
    assert capsys.readouterr().err.splitlines()[-1] == kept
    interrupted.row, interrupted.titles = None, []
    assert main([*short, "--out", str(out)]) == 0
    assert set(interrupted.titles) == {"sam", "step times"}  # not base
    assert f"% (2 of the runs from {out}/runs)" in capsys.readouterr().err
    assert without_times(out / "results.json") == without_times(tmp_path / "whole/results.json")
    interrupted.titles = []
    assert main([*short, "--out", str(out)]) == 0 and not interrupted.titles  # all is there
    interrupted.row = "base"
    assert main([*short, "--out", str(out), "--learning-rate", "0.01"]) == 130  # another recipe has none


def test_runs_of_other_code_or_images_are_trained_again(tmp_path, monkeypatch):
    recipe, store = Recipe(epochs=1, batch_size=200, learning_rate=0.05), Store(tmp_path)
    work = []

    def trained():
        work.clear()
        compare(recipe, {}, seeds=1, rounds=1, store=store, report=str, progress=lambda *update: work.append(update))
        return bool(work)

    assert trained() and not trained()
    monkeypatch.setattr("looksam.experiments.engine.side_by_side.digest_of", lambda *parts: "another")
    assert trained() and not trained()


def test_an_interrupted_tuning_resumes(tmp_path, capsys, monkeypatch):
    short = [
        "compare",
        "digits",
        "--tune",
        "--validation",
        "0.25",
        "--methods",
        "sam",
        "--epochs",
        "1",
        "--seeds",
        "1",
    ]
    interrupted = Interrupted(monkeypatch, "sam")
    assert main([*short, "--out", str(tmp_path)]) == 130
    assert "finished runs are kept" in capsys.readouterr().err
    interrupted.row, interrupted.titles = None, []
    assert main([*short, "--out", str(tmp_path)]) == 0 and set(interrupted.titles) == {"sam"}


def test_a_row_that_never_acts_is_refused_before_anything_trains(tmp_path, capsys):
    arguments = ["--methods", "sam", "look_sam@0.99", "--epochs", "1", "--seeds", "1", "--out", str(tmp_path)]
    assert main(["compare", "digits", *arguments]) == 1
    error = capsys.readouterr().err
    assert "--start 0.99 is step 12 of a run of 12 steps" in error and "base:" not in error


def test_other_rows_are_tuned_too(tmp_path):
    recipe, rows = "digits-noise30-decay", ["sam@0.5", "gsam", "msam"]
    arguments = ["compare", recipe, "--tune", "--methods", *rows, "--epochs", "2", "--seeds", "1", "--json"]
    assert main([*arguments, "--validation", "0.25", "--out", str(tmp_path)]) == 0
    methods = json.loads((tmp_path / "tuning.json").read_text())[recipe]["methods"]
    assert list(methods) == ["base", *rows]
    for name, tuning in methods.items():
        selected, grid = tuning["selected"], tuning["grid"]
        assert len(grid) == len(tuning["accuracy"]) >= 12 and selected in grid
        assert selected.keys() >= {"learning_rate", "weight_decay"}
        assert all(setting.get("start") == (0.5 if "@" in name else None) for setting in grid)
        for setting in {"learning_rate", "weight_decay", "rho", "alpha"} & selected.keys():
            assert min(s[setting] for s in grid) < selected[setting] < max(s[setting] for s in grid)


def test_tuning_does_not_read_the_test_set(tmp_path, capsys):
    arguments = ["compare", "digits", "--tune", "--methods", "sam", "--epochs", "1", "--seeds", "1"]
    assert main([*arguments, "--out", str(tmp_path)]) == 1
    assert "--validation" in capsys.readouterr().err
    assert main([*arguments, "--validation", "0.25", "--out", str(tmp_path), "--json"]) == 0
    tuning = json.loads((tmp_path / "tuning.json").read_text())["digits"]["methods"]["sam"]
    scores = [np.mean(seeds) for seeds in tuning["accuracy"]]
    assert scores[tuning["grid"].index(tuning["selected"])] == max(scores)
    hits = np.array(scores) * 150 / 100
    np.testing.assert_allclose(hits, np.round(hits), atol=1e-4)  # of the 150 held out, not of 1,197


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit"], "did you mean digits"),
        (["--seeds", "0"], "at least 1"),
        (["--methods", "sgd"], "row 'sgd' names no method"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, capsys):
    try:
        code = main(["compare", *arguments, "--out", str(tmp_path / "new")])
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_all_methods_share_one_copy_of_the_training_set():
    recipe, copies = Recipe(epochs=1, batch_size=200, learning_rate=0.05), []

    def report(line):
        copies.append(sum(array.shape == (600, 8, 8, 1) for array in jax.live_arrays()))

    gc.collect()
    before = sum(array.shape == (600, 8, 8, 1) for array in jax.live_arrays())
    compare(recipe, {"sam": {"rho": 0.1}, "look_sam": {"rho": 0.1}}, seeds=1, rounds=1, report=report)
    assert copies == [before + 1] * 3


@pytest.mark.parametrize(("version", "fix"), [(None, "run `looksam compare` again"), (2, "install a newer looksam")])
def test_results_of_another_version(tmp_path, version, fix):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"digits": {"version": version} if version else {}}))
    with pytest.raises(ValueError, match=rf"results\.json: digits has format version .*, .* reads version 1; {fix}"):
        read_results(path)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "base"])
def test_a_methods_own_settings_are_those_of_the_recipe(method):
    recipe = Recipe(method=method, rho=0.2, alpha=0.6, k=3)
    own = {name: getattr(recipe, name) for name in METHODS[method].settings if name in ("rho", "alpha", "k")}
    assert starting_settings(recipe, method, sam_rho=0.2) == own


def test_methods_on_scales_of_their_own_start_from_sams_rho():
    recipe = Recipe(method="look_sam", rho=0.2, alpha=0.6, k=3)
    starts = {method: starting_settings(recipe, method, sam_rho=0.3) for method in ("sam_k", "asam", "gsam", "msam")}
    assert starts == {
        "sam_k": {"rho": 0.2, "k": 3},
        "asam": {"rho": pytest.approx(3.0)},
        "gsam": {"rho": pytest.approx(0.3), "alpha": 0.3},
        "msam": {"rho": pytest.approx(1.5)},
    }
    assert starting_settings(Recipe(method="msam", rho=2.0), "msam", sam_rho=0.3) == {"rho": 2.0}
