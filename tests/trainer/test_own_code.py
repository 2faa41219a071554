"""Functions of the user's own: their names in a recipe, how they are found again, and what goes wrong on the way."""

import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint

import pytest

from looksam.trainer import Recipe, own_code
from looksam.trainer.own_code import OwnCodeError
from looksam.trainer.recipes import find


def build(image_shape, num_classes, dtype):
    """A builder that is only named."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with sys.path and sys.modules restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        del sys.modules[name]


@pytest.fixture
def installed(monkeypatch):
    """Pretends that a package is installed, with entry points by group."""

    def install(**groups):
        points = {
            group: {name: EntryPoint(name, value, f"looksam.{group}") for name, value in names.items()}
            for group, names in groups.items()
        }
        monkeypatch.setattr(own_code, "entry_points", lambda group: points.get(group, {}))

    return install


# --- names --------------------------------------------------------------------------------------------------------


def test_a_function_is_kept_by_its_file_and_found_again():
    recipe = Recipe(model=build, dataset=build)
    assert recipe.model == recipe.dataset == f"{__file__}:build"
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert own_code.load("model", recipe.model) is build


def test_a_function_of_a_package_is_kept_by_its_module():
    assert Recipe(model=find).model == "looksam.trainer.recipes:find"
    assert own_code.load("model", "looksam.trainer.recipes:find") is find


def test_a_relative_file_is_made_absolute(folder):
    assert Recipe(model="net.py:build").model == f"{folder}/net.py:build"
    assert Recipe(model="my_package.net:build").model == "my_package.net:build"


@pytest.mark.parametrize("value", [lambda *a: None, functools.partial(build, dtype=None)], ids=["lambda", "partial"])
def test_a_function_without_a_name_is_refused(value):
    with pytest.raises(ValueError, match="cannot be found again by name.*at the top level of a file"):
        Recipe(model=value)


def test_a_function_of_a_notebook_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    monkeypatch.setattr(build, "__module__", "__main__")
    with pytest.raises(ValueError, match="model=build is defined in a notebook or a prompt; put it into a file"):
        Recipe(model=build)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": "net.py"}, ValueError, "'net.py' names a file alone; name its function too, as in net.py:build"),
        ({"model": "rsnet18"}, ValueError, "model 'rsnet18' is unknown; did you mean resnet18"),
        ({"dataset": ":load"}, ValueError, "dataset ':load' is unknown"),
        ({"dataset": "a.py:x y"}, ValueError, "dataset 'a.py:x y' is unknown"),
        ({"model": 3}, TypeError, "model=3 has the wrong type; pass a name, file.py:function, or in Python a function"),
    ],
)
def test_names_that_are_none(settings, error, message):
    with pytest.raises(error, match=message):
        Recipe(**settings)


# --- importing ----------------------------------------------------------------------------------------------------


def test_a_file_is_imported_once_and_sees_its_neighbours(folder):
    (folder / "near.py").write_text("WIDTH = 7\n")
    (folder / "net.py").write_text("import near\nnear.WIDTH += 1\ndef build(): return near.WIDTH\n")
    name = Recipe(model="net.py:build").model
    assert own_code.load("model", name) is sys.modules["net"].build  # which worker processes can import by that name
    assert own_code.load("model", name)() == 8


def test_threads_wait_for_the_import_of_a_file(folder):
    (folder / "net.py").write_text("import time\ntime.sleep(0.2)\ndef build():\n    pass\n")
    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(own_code.load, ["model"] * 4, [f"{folder}/net.py:build"] * 4)
    assert all(other is first for other in others)


def test_two_files_of_one_name_are_two_modules(folder):
    for place in ("one", "two"):
        (folder / place).mkdir()
        (folder / place / "net.py").write_text(f"def build(): return {place!r}\n")
    assert [own_code.load("model", f"{folder}/{place}/net.py:build")() for place in ("one", "two")] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (None, "net.py:build", "there is no file .*net.py; correct the path"),
        ("def built(): pass", "net.py:build", r"net.py has no 'build'; did you mean built\?"),
        ("build = 3", "net.py:build", "is a int, not a function; name a function"),
        ("\ndef build(:", "net.py:build", "net.py, line 2: SyntaxError: invalid syntax"),
        ("import nosuch_package", "net.py:build", "net.py, line 1: ModuleNotFoundError: No module named 'nosuch_pack"),
        ("\n\n1 / 0", "net.py:build", "net.py, line 3: ZeroDivisionError: division by zero"),
        ("", "nosuch_package.net:build", "there is no module 'nosuch_package'; install its package, or pass"),
    ],
)
def test_what_cannot_be_imported_is_named_with_its_line(folder, text, name, message):
    if text is not None:
        (folder / "net.py").write_text(text)
    with pytest.raises(OwnCodeError, match=message):
        own_code.load("model", Recipe(model=name).model)
    assert "net" not in sys.modules or text in ("def built(): pass", "build = 3")


def test_entry_points_are_names_like_ours(installed):
    installed(models={"my_net": f"{__name__}:build"}, recipes={"mine": "looksam.trainer.recipes.small:DIGITS_SETTINGS"})
    assert own_code.load("model", Recipe(model="my_net").model) is build
    listing = find("mine")
    assert (listing.recipe.batch_size, listing.table, listing.origin) == (50, "package", "an installed package")
    with pytest.raises(ValueError, match="model 'my_nett' is unknown; did you mean my_net?"):
        Recipe(model="my_nett")


def test_an_entry_point_that_does_not_load(installed):
    installed(models={"my_net": "nosuch_package:build"}, recipes={"mine": f"{__name__}:build"})
    with pytest.raises(OwnCodeError, match="nosuch_package:build, the entry point 'my_net' of .*ModuleNotFoundError"):
        own_code.load("model", "my_net")
    with pytest.raises(OwnCodeError, match="'mine' of looksam.recipes is a function; name a looksam.trainer.Recipe"):
        find("mine")
