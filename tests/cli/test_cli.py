"""The command line: what it shows, what it refuses and how, and what reaches the trainer."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

import looksam.trainer
from looksam.cli import main, parser
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import ALL, find
from looksam.trainer.run_folder.run_directory import RunError, write_recipe

RESULT = {"status": "finished", "signal": None, "step": 1200, "test_accuracy": 95.3, "test_loss": 0.21, "run_dir": "r"}


@pytest.fixture
def trainer(monkeypatch):
    """In place of ``looksam.trainer.run``: keeps what it is called with, and gives or raises ``outcome``."""

    class Trainer:
        def __init__(self):
            self.outcome, self.calls = RESULT, []

        def __call__(self, recipe, run_dir, **options):
            self.calls.append((recipe, run_dir, options))
            if isinstance(self.outcome, BaseException):
                raise self.outcome
            options["report"]("on the way")
            return self.outcome

    trainer = Trainer()
    monkeypatch.setitem(vars(looksam.trainer), "run", trainer)
    return trainer


@pytest.fixture
def cli(capsys):
    def run(*argv):
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


# --- help -------------------------------------------------------------------------------------------------------


def test_module_runs_as_a_command_and_survives_a_closed_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "looksam.cli", "recipes"]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_help_lists_commands_and_exit_codes(cli):
    code, out, _ = cli("--help")
    assert code == 0
    for command in ("train", "eval", "predict", "export", "recipes"):
        assert re.search(rf"^    {command} +\S", out, re.MULTILINE)
    assert re.findall(r"^  (\d+) +\S", out, re.MULTILINE) == ["0", "1", "2", "130", "143"]


@pytest.mark.parametrize("command", ["train", "eval", "predict", "export", "recipes"])
def test_help_of_a_command_has_examples_that_parse(cli, command):
    code, out, _ = cli(command, "--help")
    assert code == 0
    assert out.isascii()  # shows on any terminal
    examples = re.findall(rf"^  looksam {command} (.*)$", out, re.MULTILINE)
    assert examples
    for word in re.findall(r"--[a-z-]+", " ".join(examples)):
        assert re.search(rf"^  {word}\b", out, re.MULTILINE), word
    if command == "train":
        assert {example.split()[0] for example in examples} - {"my_recipe.py"} <= ALL.keys()


def test_every_setting_has_a_flag_with_a_help_text(cli):
    _, out, _ = cli("train", "--help")
    for field in dataclasses.fields(Recipe):
        flag = "--" + field.name.replace("_", "-")
        entry = re.search(rf"^  {flag}\b.*\n?(?:^ {{8,}}\S.*\n)*", out, re.MULTILINE)
        assert entry, flag
        assert re.search(r"  \S.{7,}", entry[0].partition(flag)[2]), flag
    assert [setting.name for setting in parser.settings()] == [field.name for field in dataclasses.fields(Recipe)]
    assert all(setting.help and setting.section for setting in parser.settings())
    sections = "data, model, augmentation, base optimizer, sharpness-aware rule, parallelism, run"
    assert ", ".join(dict.fromkeys(setting.section for setting in parser.settings())) == sections


def test_the_help_names_the_rules_that_take_a_setting():
    texts = {setting.name: setting.help for setting in parser.settings()}
    assert texts["alpha"].endswith("(for look_sam, look_layer_sam, gsam)")
    assert texts["eta"].endswith("(for asam)")
    assert texts["momentum"].startswith("Momentum of sgdm; msam") and "(for" not in texts["momentum"]
    assert "(for" not in texts["start"] + texts["stop"] + texts["perturb"] + texts["rho"]


def test_a_percent_sign_in_a_help_text_is_shown(cli, monkeypatch):
    setting = parser.Setting("rho", float, "sharpness-aware rule", "30 % of it")
    monkeypatch.setattr(parser, "settings", lambda: (setting,))
    assert "30 % of it" in cli("train", "--help")[1]


# --- bad usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "required: COMMAND"),
        ("trian digits", "invalid choice: 'trian'"),
        ("train", "required: RECIPE"),
        ("train digitz", "recipe 'digitz' is unknown; did you mean digits?"),
        ("train digits --nosuch 1", "no flag --nosuch; the help lists them all"),
        ("train digits --seed 4294967296", "--seed 4294967296 is out of range; pass 0 <= --seed <= 2147483647"),
        ("train digits --seed -1", "--seed -1 is out of range; pass --seed >= 0"),
        ("train digits --classes 1", "--classes 1 is out of range; pass --classes >= 2"),
        ("train digits --model nosuch.py:build", "there is no file /"),
        ("train nosuch.toml", "there is no file nosuch.toml; pass the path of a recipe"),
        ("recipes nosuch.json", "there is no file nosuch.json"),
        ("train digits --lerning-rate 0.1", "no flag --lerning-rate; did you mean --learning-rate?"),
        ("train digits --learning_rate=0.1", "no flag --learning_rate; did you mean --learning-rate?"),
        ("train digits --rh 0.1", "no flag --rh; did you mean --rho?"),
        ("train digits --zzzz", "no flag --zzzz; the help lists them all"),
        ("train digits again", "'again' is one argument too many"),
        ("train digits --epochs ten", "argument --epochs: 'ten' is not a whole number"),
        ("train digits --epochs 1.5", "argument --epochs: '1.5' is not a whole number"),
        ("train digits --rho much", "argument --rho: 'much' is not a number"),
        ("train digits --rho none", "argument --rho: 'none' is not a number"),
        ("train digits --clip-norm x", "argument --clip-norm: 'x' is not a number or none"),
        ("train digits --method looksam", "argument --method: 'looksam' is unknown; did you mean look_sam"),
        ("train digits --rho", "argument --rho: expected one argument"),
        ("train digits --rho -1", "--rho -1.0 is out of range; pass --rho >= 0.0"),
        ("train digits --rho nan", "--rho nan is out of range"),
        ("train digits --epochs 0", "--epochs 0 is out of range; pass --epochs >= 1"),
        ("train digits --label-noise 1.5", "--label-noise 1.5 is out of range; pass 0 <= --label-noise < 1"),
        ("train digits --model resnet19", "model 'resnet19' is unknown; did you mean resnet18"),
        ("train digits --dataset cifar10", "dataset 'cifar10' is unknown; did you mean cifar100"),
        ("recipes zz", "no recipe matches 'zz'"),
        ("recipes digitz", "no recipe matches 'digitz'; did you mean digits"),
        ("recipes --jason", "no flag --jason; did you mean --json?"),
        (
            "eval . --checkpoint newest",
            "'newest' is not a checkpoint; pass last, best or a step",
        ),
        ("eval no/such/run", "'no/such/run' is not a folder; pass the folder of a run"),
    ],
)
def test_bad_usage(cli, trainer, words, message):
    code, out, err = cli(*words.split())
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) <= 2
    assert trainer.calls == []


def test_eval_suggests_a_run_nearby(cli, tmp_path):
    (tmp_path / "digits-seed0").mkdir()
    (tmp_path / "digits-seed0.txt").touch()
    code, _, err = cli("eval", str(tmp_path / "digits-sed0"))
    assert (code, "did you mean digits-seed0?" in err) == (2, True)


# --- recipes ----------------------------------------------------------------------------------------------------


def test_recipes_are_listed(cli):
    code, out, _ = cli("recipes")
    assert code == 0
    head, *rows = out.splitlines()
    assert head.split() == ["name", "table", "paper", "hardware", "and", "time"]
    assert [row.split()[0] for row in rows] == list(ALL)
    row = next(row for row in rows if row.startswith("vit_b16-look_sam-5 "))
    assert re.split("  +", row) == ["vit_b16-look_sam-5", "vit", "79.8", "TPU pod, 70.5 s per epoch, 5.9 h"]
    assert next(row for row in rows if row.startswith("digits ")).split()[2] == "-"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("noise", ["digits-noise30", "digits-noise30-decay"]),
        ("vit_s32-*-5", ["vit_s32-sam_k-5", "vit_s32-look_sam-5"]),
        ("digit?", ["digits"]),
    ],
)
def test_recipes_by_pattern_as_json(cli, pattern, expected):
    code, out, err = cli("recipes", "--json", pattern)
    assert (code, err, out.count("\n")) == (0, "", 1)
    rows = json.loads(out)
    assert [row["name"] for row in rows] == expected
    for row in rows:
        listing = find(row["name"])
        assert Recipe(**row["recipe"]) == listing.recipe
        assert (row["table"], row["score"], row["cost"]) == (listing.table, listing.score, listing.cost)


def test_a_recipe_is_shown_with_its_origin_as_a_file_that_can_be_trained(cli, trainer, tmp_path):
    code, out, _ = cli("recipes", "digits-noise30")
    assert (code, out.splitlines()[0]) == (
        0,
        "# digits-noise30, from looksam.trainer.recipes.small; 2 CPU cores, seconds",
    )
    path = tmp_path / "mine.toml"
    path.write_text(out)
    assert cli("train", str(path), "--seed", "3")[0] == 0
    [(recipe, run_dir, _)] = trainer.calls
    assert (recipe, str(run_dir)) == (find("digits-noise30").recipe.replace(seed=3), "runs/mine-seed3")
    assert cli("recipes", str(path))[1].splitlines()[1:] == out.splitlines()[1:]
    assert json.loads(cli("recipes", str(path), "--json")[1])[0]["origin"] == str(path)


def test_an_error_in_a_file_speaks_of_settings_and_one_in_a_flag_of_flags(cli, trainer, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("batch_size = 0\n")
    assert cli("train", str(path)) == (
        2,
        "",
        f"looksam: {path}, line 1: batch_size=0 is out of range; pass batch_size >= 1.\n",
    )
    path.write_text("batch_size = 10\n")
    message = "looksam: --batch-size 0 is out of range; pass --batch-size >= 1.\n"
    assert cli("train", str(path), "--batch-size", "0") == (2, "", message)


# --- train and eval ---------------------------------------------------------------------------------------------


def test_flags_take_the_place_of_settings(cli, trainer):
    words = "--method sam --rho 0.25 --epochs 3 --clip-norm 1 --crop-padding none --download --no-decay-all"
    more = "--optimizer adamw --p inf --dtype bfloat16 --data-dir some/where --seed 7 --steps 5"
    assert cli("train", "cifar100-small-vit", *words.split(), *more.split())[0] == 0
    [(recipe, run_dir, _)] = trainer.calls
    # fmt: off
    assert recipe == find("cifar100-small-vit").recipe.replace(
        method="sam", rho=0.25, epochs=3, clip_norm=1.0, crop_padding=None, download=True, decay_all=False,
        optimizer="adamw", p=float("inf"), dtype="bfloat16", data_dir="some/where", seed=7, steps=5,
    )
    # fmt: on
    assert run_dir == pathlib.Path("runs/cifar100-small-vit-seed7")


@pytest.mark.parametrize("field", dataclasses.fields(Recipe), ids=lambda field: field.name)
def test_every_flag_reaches_its_setting(cli, trainer, field):
    recipe = find("imagenette-vit-s32").recipe
    value = getattr(recipe, field.name)
    flag = "--" + field.name.replace("_", "-")
    if field.type is bool:
        words, expected = [flag.replace("--", "--no-") if value else flag], not value
    else:
        words, expected = [flag, str(value)], value
    assert cli("train", "digits", *words)[0] == 0
    [(resolved, _, _)] = trainer.calls
    assert resolved == find("digits").recipe.replace(**{field.name: expected})


def test_run_dir_and_quiet(cli, trainer):
    cli("train", "digits", "--run-dir", "some/run", "--quiet")
    cli("train", "digits")
    (_, first, options), (_, second, others) = trainer.calls
    assert (first, second) == (pathlib.Path("some/run"), pathlib.Path("runs/digits-seed0"))
    assert (options["quiet"], others["quiet"]) == (True, False)


def test_result_for_people_and_for_machines(cli, trainer):
    told = "finished at step 1200: test accuracy 95.30, test loss 0.2100\nr\n"
    assert cli("train", "digits") == (0, told, "on the way\n")
    code, out, err = cli("train", "digits", "--json")
    assert (code, json.loads(out), out.count("\n"), err) == (0, RESULT, 1, "on the way\n")


def test_scores_on_validation_and_test_images_are_called_so(cli, trainer):
    scores = {"validation_accuracy": 91.0, "validation_loss": 0.3, "test_accuracy": None}
    trainer.outcome = RESULT | scores | {"status": "stopped", "split": "validation", "test_loss": None}
    assert cli("train", "digits")[:2] == (
        0,
        "stopped at step 1200: validation accuracy 91.00, validation loss 0.3000\nr\n",
    )
    best = {"best_accuracy": 92.0, "best_step": 600, "best_test_accuracy": 96.0, "best_test_loss": 0.19}
    trainer.outcome = RESULT | best | {"validation_accuracy": 91.0, "validation_loss": 0.3}
    assert cli("train", "digits")[1].splitlines() == [
        "finished at step 1200: validation accuracy 91.00, validation loss 0.3000, "
        "test accuracy 95.30, test loss 0.2100",
        "best validation accuracy 92.00 at step 600: test accuracy 96.00, test loss 0.1900",
        "r",
    ]


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (None, 130)])
def test_an_interrupted_run_says_so(cli, trainer, number, expected):
    trainer.outcome = RESULT | {"status": "interrupted", "signal": number, "test_accuracy": None, "test_loss": None}
    code, out, _ = cli("train", "digits")
    assert (code, out) == (expected, "interrupted at step 1200: not tested yet\nr\n")


def test_eval(cli, monkeypatch, tmp_path):
    asked = []
    result = {"step": 3, "test_accuracy": 50.0, "test_loss": 1.5, "run_dir": "r"}
    write_recipe(tmp_path, Recipe())

    def evaluate_run(folder, checkpoint, **options):
        assert set(options.values()) == {None, False}
        asked.append((folder, checkpoint))
        return result

    monkeypatch.setitem(vars(looksam.trainer), "evaluate_run", evaluate_run)
    assert cli("eval", str(tmp_path)) == (0, "evaluated at step 3: test accuracy 50.00, test loss 1.5000\nr\n", "")
    assert json.loads(cli("eval", str(tmp_path), "--json", "--checkpoint", "best")[1]) == result
    assert cli("eval", str(tmp_path), "--checkpoint", "1200")[0] == 0
    assert asked == [(tmp_path, "last"), (tmp_path, "best"), (tmp_path, 1200)]


# --- what goes wrong on the way ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RunError("the loss is nan at step 7"), 1, "looksam: the loss is nan at step 7\n"),
        (ValueError("batch_size=9 is larger"), 1, "looksam: --batch-size 9 is larger\n"),
        (TypeError("mlp has no option 'heads'"), 1, "looksam: mlp has no option 'heads'\n"),
        (FileNotFoundError("pass data_dir="), 1, "looksam: pass --data-dir\n"),
        (ImportError("needs Pillow: pip install ..."), 1, "looksam: needs Pillow: pip install ...\n"),
        (
            ModuleNotFoundError("No module named 'flax.nnx'", name="flax.nnx"),
            1,
            "looksam: this needs flax.nnx, which is not installed: pip install 'looksam[train]'\n",
        ),
        (KeyboardInterrupt(), 130, "looksam: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_failures_are_a_message_and_a_code(cli, trainer, monkeypatch, error, code, message):
    monkeypatch.delenv("LOOKSAM_DEBUG", raising=False)
    trainer.outcome = error
    assert cli("train", "digits", "--json") == (code, "", message)


def test_debug_shows_the_traceback(cli, trainer, monkeypatch):
    monkeypatch.setenv("LOOKSAM_DEBUG", "1")
    trainer.outcome = RunError("full disk")
    code, _, err = cli("train", "digits")
    assert (code, err.startswith("Traceback"), err.endswith("looksam: full disk\n")) == (1, True, True)


@pytest.mark.parametrize("error", [KeyError("bug"), RuntimeError("bug")])
def test_what_no_one_foresaw_is_not_hidden(trainer, error):
    trainer.outcome = error
    with pytest.raises(type(error), match="bug"):
        main(["train", "digits"])
