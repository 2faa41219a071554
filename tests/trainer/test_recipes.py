"""The recipes have the settings of the paper's parameter tables, every entry, and its scores."""

import ast
import csv
import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import looksam
from looksam.trainer import models
from looksam.trainer.recipe import SECTIONS, Recipe
from looksam.trainer.recipes import ALL, cifar, find, imagenet, own_images, paper_tables, small
from looksam.trainer.setting_types import parse

TABLES = {
    "digits": (small, small.DIGITS_RECIPES),
    "small": (small, small.PHOTO_RECIPES),
    "own": (own_images, own_images.RECIPES),
    "cifar100": (cifar, cifar.RECIPES),
    "vit": (imagenet, imagenet.VIT_RECIPES),
    "large_batch": (imagenet, imagenet.LARGE_BATCH_RECIPES),
    "augment_64k": (imagenet, imagenet.AUGMENTED_RECIPES),
}
FOLDER = pathlib.Path(looksam.__file__).parent / "trainer/recipes"


def check(name, **expected):
    recipe = find(name).recipe
    assert {key: getattr(recipe, key) for key in expected} == expected, name


# --- the settings -----------------------------------------------------------------------------------------------


# fmt: off
CIFAR100 = {
    "dataset": "cifar100", "image_size": None, "crop_padding": 4, "randaugment": 0, "mixup": 0.0, "label_noise": 0.0,
    "optimizer": "sgdm", "momentum": 0.9, "learning_rate": 0.1, "scale_from_batch": None, "schedule": "cosine",
    "warmup_steps": 0, "weight_decay": 5e-4, "decay_all": True, "clip_norm": None, "label_smoothing": 0.0,
    "batch_size": 128, "epochs": 200, "steps": None, "rho": 0.1, "alpha": 0.7, "p": 2.0,
}
VANILLA = {
    "dataset": "imagenet", "image_size": 224, "randaugment": 0, "mixup": 0.0, "label_smoothing": 0.0,
    "optimizer": "adamw", "learning_rate": 3e-3, "scale_from_batch": None, "schedule": "cosine",
    "warmup_steps": 10_000, "weight_decay": 0.3, "decay_all": False, "clip_norm": 1.0,
    "batch_size": 4096, "epochs": 300, "steps": None, "alpha": 0.7, "p": 2.0,
}
LARGE = {
    "dataset": "imagenet", "image_size": 224, "model": "vit_b16", "label_smoothing": 0.0, "optimizer": "lamb",
    "scale_from_batch": None, "schedule": "linear", "decay_all": False, "clip_norm": 1.0,
    "epochs": 300, "steps": None, "k": 5, "p": 2.0, "scaling": "normalized",
}
DIGITS = {
    "dataset": "digits", "model": "mlp", "optimizer": "sgdm", "momentum": 0.9, "learning_rate": 0.05,
    "schedule": "cosine", "warmup_steps": 0, "weight_decay": 0.0, "clip_norm": None,
    "batch_size": 50, "epochs": 100, "steps": None, "method": "look_sam", "k": 5,
}
# fmt: on


def check_methods(prefix, periods, **shared):
    check(f"{prefix}-base", method="base", **shared)
    check(f"{prefix}-sam", method="sam", **shared)
    for k in periods:
        check(f"{prefix}-sam_k-{k}", method="sam_k", k=k, **shared)
        check(f"{prefix}-look_sam-{k}", method="look_sam", k=k, **shared)


@pytest.mark.parametrize("model", ["resnet18", "resnet50", "wrn28_10"])
def test_cifar100(model):
    check_methods(f"cifar100-{model}", (5, 10, 20), model=model, **CIFAR100)


@pytest.mark.parametrize(("model", "rho"), [("vit_b16", 0.18), ("vit_b32", 0.15), ("vit_s16", 0.1), ("vit_s32", 0.05)])
def test_vanilla_vit(model, rho):
    check_methods(model, (5, 10), model=model, rho=rho, **VANILLA)


@pytest.mark.parametrize(
    ("batch", "warmup", "rate", "rho", "layer_rho", "alpha", "decay"),
    [
        (4096, 10_000, 1e-2, 0.18, 1.0, 0.7, 0.1),
        (8192, 10_000, 1.7e-2, 0.18, 1.0, 0.7, 0.1),
        (16384, 7_000, 1.8e-2, 0.18, 1.0, 0.7, 0.1),
        (32768, 6_000, 1.8e-2, 0.18, 1.0, 0.7, 0.1),
        (65536, 3_500, 2e-2, 0.18, 1.0, 0.7, 0.2),  # rho of SAM is ours here
    ],
)
def test_large_batch(batch, warmup, rate, rho, layer_rho, alpha, decay):
    row = {"batch_size": batch, "warmup_steps": warmup, "learning_rate": rate, "alpha": alpha, "weight_decay": decay}
    shared, prefix = LARGE | row, f"vit_b16-lamb-{batch}"
    for method in ("base", "sam", "look_sam"):
        check(f"{prefix}-{method}", method=method, rho=rho, randaugment=0, mixup=0.0, **shared)
    for method in ("layer_sam", "look_layer_sam"):
        check(f"{prefix}-{method}", method=method, rho=layer_rho, randaugment=0, mixup=0.0, **shared)
    if batch >= 32768:
        shared |= {"method": "look_layer_sam", "rho": layer_rho, "randaugment": 2, "randaugment_magnitude": 10.0}
        check(f"{prefix}-look_layer_sam-randaugment", mixup=0.0, **shared)
        check(f"{prefix}-look_layer_sam-randaugment-mixup", mixup=0.2, **shared)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("digits", {}),
        ("digits-noise30", {"label_noise": 0.3}),
        ("digits-noise30-decay", {"label_noise": 0.3, "weight_decay": 0.02}),
    ],
)
def test_digits(name, changes):
    check(name, **DIGITS | {"label_noise": 0.0} | changes)


def test_every_method_of_the_digits_recipes_is_tuned():
    assert set(small.DIGITS_SELECTED) == set(small.DIGITS_RECIPES)
    for name, selected in small.DIGITS_SELECTED.items():
        assert set(selected) == {"base", "sam", "sam_k", "look_sam"}
        for method, settings in selected.items():
            assert "learning_rate" in settings and ("rho" in settings) == (method != "base")
            small.RECIPES[name].replace(method=method, **settings)  # are settings of a recipe
        check(name, **selected["look_sam"])


def test_small_photo_recipes():
    check("cifar100-small-resnet", dataset="cifar100", model="resnet_small", optimizer="sgdm", crop_padding=4)
    check("cifar100-small-vit", dataset="cifar100", model="vit", optimizer="adamw", crop_padding=4)
    for name, table in (("cifar100-small-resnet", "cifar100"), ("cifar100-small-vit", "vit")):
        with open(FOLDER.parents[2] / "results" / table / "table-2.csv") as file:
            rows = {(row["labels"], row["method"]): row for row in csv.DictReader(file)}
        selected = rows["clean labels", "LookSAM-5"]
        assert (selected["ρ"], selected["α"]) == (f"{find(name).recipe.rho:g}", f"{find(name).recipe.alpha:g}")
    check("cifar100-64k", dataset="cifar100", batch_size=65536, across_epochs=True, randaugment=2, mixup=0.2)
    check("cifar100-64k", optimizer="lamb", method="look_layer_sam", rho=1.0, learning_rate=2e-2, weight_decay=0.2)
    check(
        "imagenette-vit-s32",
        dataset="parquet",
        model="vit_s32",
        image_size=224,
        randaugment=2,
        randaugment_magnitude=10.0,
        mixup=0.2,
        rho=0.05,
    )


@pytest.mark.parametrize(
    ("name", "like"), [("folder-resnet", "cifar100-small-resnet"), ("folder-vit", "cifar100-small-vit")]
)
def test_folder_recipes_use_all_images_and_the_rule_of_small_models(name, like):
    check(name, dataset="folder", train_limit=None, classes=None, validation=None, data_dir=None, image_size=64)
    same = ("model", "optimizer", "method", "rho", "alpha", "k", "weight_decay", "decay_all", "clip_norm", "epochs")
    check(name, **{setting: getattr(find(like).recipe, setting) for setting in same})


@pytest.mark.parametrize("seed", [2**31, 2**32, 10**30, -1])
def test_seeds_that_a_compiled_program_does_not_take(seed):
    with pytest.raises(ValueError, match=f"seed={seed} is out of range"):
        Recipe(seed=seed)


def test_every_recipe_is_in_one_table():
    assert {table: len(recipes) for table, (_, recipes) in TABLES.items()} == {
        "augment_64k": 2 * 2,
        "cifar100": 3 * 8,
        "digits": 3,
        "own": 2,
        "small": 4,
        "large_batch": 5 * 5,
        "vit": 4 * 6,
    }
    assert sorted(ALL) == sorted(name for _, recipes in TABLES.values() for name in recipes)
    for table, (_, recipes) in TABLES.items():
        assert {find(name).table for name in recipes} == {table}


# --- the paper's numbers ----------------------------------------------------------------------------------------


def csv_rows(name):
    with open(FOLDER / "paper_tables" / f"{name}.csv") as file:
        return list(csv.DictReader(file))


def test_scores_are_the_papers():
    expected = {}
    for row in csv_rows("cifar100"):
        for column, value in row.items():
            method, _, k = column.rpartition("_")
            name = {"sgd_m": "base", "sam": "sam"}.get(column, f"{'sam_k' if method == 'sam' else method}-{k}")
            expected[f"cifar100-{row['model']}-{name}"] = value
        del expected[f"cifar100-{row['model']}--model"]
    for row in csv_rows("vit"):
        method, _, k = row["method"].rpartition("_")
        names = {"adamw": "base", "sam": "sam"}
        name = names.get(row["method"], f"{'sam_k' if method == 'sam' else method}-{k}")
        expected[f"{row['model']}-{name}"] = row["top1"]
    for row in csv_rows("large_batch"):
        method = row["method"].partition("+")[2] or "base"
        for batch in ("4096", "8192", "16384", "32768"):
            expected[f"vit_b16-lamb-{batch}-{method}"] = row[batch]
    for row in csv_rows("augment_64k"):
        method = row["method"].partition("+")[2] or "base"
        suffix = "-randaugment" * (row["randaug"] == "yes") + "-mixup" * (row["mixup"] == "yes")
        for batch in ("32768", "65536"):
            expected[f"vit_b16-lamb-{batch}-{method}{suffix}"] = row[batch]
    scores = {name: listing.score for name, listing in ALL.items() if listing.score is not None}
    assert scores == {name: float(value) for name, value in expected.items()}
    assert len(scores) == 24 + 24 + 16 + 2 + 4


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("cifar100-wrn28_10-look_sam-20", 83.6),
        ("cifar100-resnet50-base", 81.4),
        ("vit_b16-look_sam-5", 79.8),
        ("vit_s32-sam_k-10", 68.1),
        ("vit_b16-lamb-32768-look_layer_sam", 77.1),
        ("vit_b16-lamb-65536-base", 68.1),
        ("vit_b16-lamb-65536-look_layer_sam-randaugment-mixup", 75.6),
        ("vit_b16-lamb-65536-sam", None),
        ("vit_b16-lamb-4096-layer_sam", None),
        ("digits", None),
    ],
)
def test_some_scores_by_hand(name, score):
    assert find(name).score == score


def test_costs_are_the_papers():
    assert find("vit_b16-look_sam-5").cost == "TPU pod, 70.5 s per epoch, 5.9 h"
    assert find("vit_b16-lamb-32768-look_layer_sam").cost == "TPU pod, 1,024 chips, 0.7 h"
    assert find("vit_b16-lamb-4096-base").cost == "TPU pod, 128 chips, 4.8 h"
    assert find("vit_b16-lamb-32768-base").cost == "TPU pod, 1,024 chips; 1 gradient per step"
    assert find("cifar100-resnet18-look_sam-20").cost == "one accelerator; 1.05 gradients per step"
    assert find("cifar100-resnet18-sam").cost == "one accelerator; 2 gradients per step"


def test_a_number_that_is_not_in_a_table_is_none():
    assert paper_tables.number("time_hours", "32768", method="lamb") is None  # empty
    assert paper_tables.number("time_hours", "65536", method="lamb") is None  # no such column
    assert paper_tables.number("time_hours", "4096", method="sam") is None  # no such row
    assert paper_tables.number("throughput", "images_per_second", method="look_sam_5") == 19051


# --- the tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_a_table_opens_with_paper_command_hardware_time_score(table):
    module, recipes = TABLES[table]
    here = [name for name, (other, _) in TABLES.items() if other is module].index(table)
    docstring = ast.get_docstring(ast.parse(pathlib.Path(module.__file__).read_text()))
    text = "Paper: " + docstring.split("Paper: ")[1 + here]
    parts = re.findall(r"^(Paper|Command|Hardware|Time|Score): +(\S.*)$", text, re.MULTILINE)
    assert [name for name, _ in parts] == ["Paper", "Command", "Hardware", "Time", "Score"]
    command = dict(parts)["Command"].split()
    assert command[:2] == ["looksam", "train"]
    assert command[2] in recipes
    assert re.search(r"\b[Oo]urs\b", text)
    for table in re.findall(r"(\w+)\.csv", text):
        assert (FOLDER / "paper_tables" / f"{table}.csv").exists()


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(ValueError, match="'vit_b16-looksam-5' is unknown; did you mean vit_b16-look_sam-5"):
        find("vit_b16-looksam-5")
    with pytest.raises(ValueError, match="'%' is unknown; looksam recipes lists them"):
        find("%")


# --- the dataclass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_round_trip_through_json(name):
    recipe = find(name).recipe
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_json_that_is_no_recipe():
    with pytest.raises(ValueError, match="JSON object of settings"):
        Recipe.from_json("[1]")
    with pytest.raises(ValueError, match="setting 'rh' is unknown; did you mean rho"):
        Recipe.from_json('{"rh": 1}')
    with pytest.raises(TypeError, match="epochs='3' has the wrong type; pass a whole number"):
        Recipe.from_json('{"epochs": "3"}')


def test_a_recipe_of_before_has_the_defaults_of_new_settings():
    new = ("eta", "start", "stop", "perturb")
    settings = {name: value for name, value in Recipe(method="sam").to_dict().items() if name not in new}
    assert Recipe.from_json(json.dumps(settings)) == Recipe(method="sam")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": -1}, "start=-1 is out of range; pass start >= 0"),
        ({"start": 1.0}, "start=1.0 is out of range; pass a fraction of the run, below 1, or a whole step"),
        ({"stop": 1.5}, "stop=1.5 is out of range"),
        ({"start": float("nan")}, "start=nan is out of range"),
        ({"start": 5, "stop": 5}, "stop=5 is not after start=5"),
        ({"start": 0.5, "stop": 0.25}, "stop=0.25 is not after start=0.5"),
        ({"eta": -0.1}, "eta=-0.1 is out of range"),
        ({"perturb": "kernel("}, r"perturb='kernel\(' is not a regular expression \(missing \).*kernel\$"),
        (
            {"method": "msam", "groups": 2},
            "groups=2 perturbs each group .* and msam takes no gradient .* leave groups out",
        ),
        ({"method": "msam", "groups": "device"}, "groups=device perturbs"),
    ],
)
def test_settings_of_a_rule_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**settings)


@pytest.mark.parametrize(("text", "value"), [("0.8", 0.8), ("0", 0), ("120", 120)])
def test_a_start_is_a_step_or_a_fraction(text, value):
    wanted = next(field.type for field in dataclasses.fields(Recipe) if field.name == "start")
    assert parse(text, wanted) == value
    assert type(parse(text, wanted)) is type(value)


def test_an_unknown_method_is_answered_with_near_ones():
    with pytest.raises(ValueError, match="method 'looksam' is unknown; did you mean look_sam"):
        Recipe(method="looksam")


def test_sections_hold_every_setting_in_order():
    names = [field.name for field in dataclasses.fields(Recipe)]
    assert [name for section in SECTIONS.values() for name in section] == names
    assert SECTIONS["parallelism"] == ("mesh", "microbatch", "groups")


def test_recipes_and_the_names_of_models_need_no_jax():
    code = "import sys, looksam.trainer.recipes; print(sorted({'jax', 'flax'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=FOLDER.parents[2])
    assert done.stdout == "[]\n", done.stderr


def test_every_setting_survives_its_flag():
    recipe = find("imagenette-vit-s32").recipe
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        assert parse(str(value), field.type) == value


SHAPES = {"digits": ((8, 8, 1), 10), "cifar100": ((32, 32, 3), 100)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits", 8_320 + 2 * 16_512 + 1_290),  # 64, 128, 128, 128, 10
        ("cifar100-small-resnet", 464 + 9_344 + 33_088 + 131_712 + 6_500),  # stem, stages, head
        ("cifar100-small-vit", 6_272 + 8_192 + 4 * (512 + 66_048 + 131_712) + 256 + 12_900),  # patches, ..., head
    ],
)
def test_small_models_build(name, expected):
    recipe = find(name).recipe
    shape, classes = SHAPES[recipe.dataset]
    sizes = {key: getattr(recipe, key) for key in ("width", "depth", "heads", "patch")}
    options = {key: value for key, value in sizes.items() if value is not None}
    model = models.build_model(recipe.model, image_shape=shape, num_classes=classes, **options)
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
