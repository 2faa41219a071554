"""Recipes in files: Python, TOML and JSON give the same recipe, and an error names the file and the line."""

import json

import pytest

from looksam.trainer import Recipe, RunError
from looksam.trainer.own_code import OwnCodeError
from looksam.trainer.recipe_files import read_recipe_file
from looksam.trainer.recipes import find
from looksam.trainer.run_folder.run_directory import write_recipe

RECIPE = Recipe(model="resnet", width=8, rho=0.25, p=float("inf"), download=True, dataset="cifar100")
TOML = 'model = "resnet"\nwidth = 8\nrho = 0.25\np = inf\ndownload = true\ndataset = "cifar100"\n'
PYTHON = """\
from looksam.trainer import Recipe

WIDTH = 8
recipe = Recipe(model="resnet", width=WIDTH, rho=0.25, p=float("inf"), download=True, dataset="cifar100")
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", TOML), ("a_recipe_file.py", PYTHON), ("a.json", RECIPE.to_json()), ("b.json", '{"rho": 0.05}')],
)
def test_all_formats_give_the_same_recipe(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    listing = find(str(tmp_path / name))
    assert listing.recipe == (RECIPE if name != "b.json" else Recipe())
    assert (listing.table, listing.origin) == ("file", str(tmp_path / name))


def test_the_recipe_of_a_run_is_one(tmp_path):
    write_recipe(tmp_path, RECIPE)
    assert read_recipe_file(tmp_path / "recipe.json") == RECIPE
    with pytest.raises(OwnCodeError, match=r"is a folder, not a recipe; pass .*recipe\.json"):
        read_recipe_file(tmp_path)
    (tmp_path / "newer.json").write_text(json.dumps({"version": 99, "recipe": {}}))
    with pytest.raises(RunError, match="newer.json has format version 99"):
        read_recipe_file(tmp_path / "newer.json")


def test_a_function_is_relative_to_the_file_that_names_it(tmp_path):
    (tmp_path / "a.toml").write_text('model = "net.py:build"\ndataset = "my_package.data:load"\n')
    recipe = read_recipe_file(tmp_path / "a.toml")
    assert (recipe.model, recipe.dataset) == (f"{tmp_path}/net.py:build", "my_package.data:load")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "epochs = 3\nrh = 1\n", r"a.toml, line 2: setting 'rh' is unknown; did you mean rho"),
        ("a.toml", "\nrho = -1.0\n", "a.toml, line 2: rho=-1.0 is out of range; pass rho >= 0"),
        ("a.toml", "start = 5\nstop = 5\n", "a.toml, line 2: stop=5 is not after start=5"),
        ("a.toml", 'epochs = "3"\n', "a.toml, line 1: epochs='3' has the wrong type; pass a whole number"),
        ("a.toml", 'model = "rsnet18"\n', "a.toml, line 1: model 'rsnet18' is unknown; did you mean resnet18"),
        ("a.toml", "rho = \n", r"a.toml is not TOML: Invalid value \(at line 1"),
        ("a.toml", "[data]\nrho = 1\n", "a.toml, line 1: 'data' is a table; put settings at the top"),
        ("a.json", '{\n "seed": 2,\n "k": 0\n}', "a.json, line 3: k=0 is out of range; pass k >= 1"),
        ("a.json", "{,}", "a.json is not JSON: .* line 1"),
        ("a.json", "[1]", "a.json holds a list; a recipe is settings with their values"),
        ("bad_value.py", PYTHON.replace("0.25", "-1"), "bad_value.py, line 4: rho=-1 is out of range"),
        ("a_lambda.py", PYTHON.replace('"resnet"', "lambda: 0"), "a_lambda.py, line 4: model=<lambda> cannot be found"),
        ("no_recipe.py", PYTHON.replace("recipe =", "mine ="), "no_recipe.py has no 'recipe'.*; rename 'mine'"),
        ("not_recipe.py", "recipe = {}", "not_recipe.py: recipe is a dict; assign a looksam.trainer.Recipe"),
        ("a.yaml", "rho: 1", r"a.yaml is not a recipe; pass a file that ends in .py, .toml, .json"),
    ],
)
def test_an_error_names_the_file_and_the_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(OwnCodeError, match=message):
        find(str(tmp_path / name))


def test_a_missing_file_is_answered_with_near_ones(tmp_path):
    (tmp_path / "mine.toml").touch()
    with pytest.raises(OwnCodeError, match="there is no file .*mien.toml; did you mean mine.toml?"):
        find(str(tmp_path / "mien.toml"))
