"""Runs on images of one's own: other data is refused, a run can be read from anywhere, and sizes are reported."""

import shutil

import numpy as np
import pytest
from picture_files import encoded, pixels, write_class_folders, write_parquet
from PIL import Image

from looksam.trainer import evaluate_run, run
from looksam.trainer.batches import load
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.dataset_summary import DatasetSummary
from looksam.trainer.run_folder.run_directory import RunError, read_recipe

pytestmark = pytest.mark.usefixtures("as_users_run_it")
NAMES = ("ant", "bee")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture
def place(folder, as_users_run_it):
    """Returns a folder with data in ``data`` and, from the first test on, a run of two steps on it in ``run``."""
    if not (folder / "run").exists():
        for split, count in (("train", 12), ("val", 4), ("test", 6)):
            write_class_folders(folder / "data", pixels(count), split, NAMES)
        run(own(folder / "data"), folder / "run", quiet=True)
    return folder


def own(folder, **changes):
    settings = {"dataset": "folder", "batch_size": 6, "steps": 2, "mesh": "data=1"}
    return Recipe(data_dir=str(folder), **(settings | changes))


def rename_a_class(folder):
    for split in ("train", "val", "test"):
        (folder / split / "bee").rename(folder / split / "wasp")


def swap_the_classes(folder):
    for old, new in (("ant", "cow"), ("bee", "ant"), ("cow", "bee")):
        (folder / "train" / old).rename(folder / "train" / new)


def remove_an_image(folder):
    next((folder / "val" / "bee").iterdir()).unlink()


def remove_the_test_set(folder):
    shutil.rmtree(folder / "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename_a_class, "class 1 is 'bee' there, 'wasp' here"),
        (swap_the_classes, "the 12 train images have the same labels, but are other files"),
        (remove_an_image, "validation images, 2 of class 'bee' there, 1 here"),
        (remove_the_test_set, r"splits \['train', 'validation', 'test'\] there, \['train', 'test'\] here"),
    ],
)
def test_a_run_does_not_resume_on_other_data(place, tmp_path, change, message):
    shutil.copytree(place / "data", tmp_path / "data")
    change(tmp_path / "data")
    with pytest.raises(RunError, match=f"{place / 'run'} holds a run on other data: {message}"):
        run(own(tmp_path / "data", steps=4), place / "run", quiet=True)


def test_a_run_does_not_resume_on_permuted_labels(tmp_path):
    data = [encoded(image) for image in pixels(6)]
    recipe = own(tmp_path, dataset="parquet", batch_size=3, validation=None)
    for labels in ([0, 1, 2, 0, 1, 2], [2, 1, 0, 2, 1, 0]):
        for split in ("train", "test"):
            write_parquet(tmp_path / f"{split}.parquet", data, labels)
        if labels[0] == 0:
            run(recipe, tmp_path / "run", quiet=True)
    with pytest.raises(RunError, match="the 6 train images have the same classes, but in another order, or other lab"):
        run(recipe.replace(steps=4), tmp_path / "run", quiet=True)


def test_a_run_resumes_on_data_that_was_moved(place, tmp_path):
    shutil.copytree(place / "data", tmp_path / "elsewhere")
    shutil.copytree(place / "run", tmp_path / "run")
    lines = []
    result = run(own(tmp_path / "elsewhere", steps=4), tmp_path / "run", quiet=True, report=lines.append)
    assert result["step"] == 4 and any(line.startswith("resuming from step 2") for line in lines)


def test_a_run_with_a_relative_data_dir_is_evaluated_from_elsewhere(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    run(own("data"), tmp_path / "run", quiet=True)
    monkeypatch.chdir(tmp_path)
    assert read_recipe(tmp_path / "run").data_dir == str(place / "data")
    assert evaluate_run("run")["step"] == 2
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("LOOKSAM_DATA", str(place))
    run(own("data", steps=1), tmp_path / "by-variable", quiet=True)
    assert read_recipe(tmp_path / "by-variable").data_dir == str(place / "data")


def test_the_summary_has_what_predictions_need(place):
    summary = DatasetSummary.read(place / "run")
    assert summary.class_names == NAMES and summary.image_shape == (4, 4, 3)
    assert {name: split.images for name, split in summary.splits.items()} == {"train": 12, "validation": 4, "test": 6}


def test_sizes_are_reported_once(place, tmp_path):
    shutil.copytree(place / "data", tmp_path / "data")
    odd = tmp_path / "data" / "train" / "bee" / "3.png"
    Image.new("RGB", (7, 5)).save(odd)
    with pytest.raises(ValueError, match=r"bee/3\.png has 7×5 pixels, and all other images have 4×4; .*--image-size 4"):
        run(own(tmp_path / "data"), tmp_path / "run", quiet=True)
    lines = []
    run(own(tmp_path / "data", image_size=4), tmp_path / "run", quiet=True, report=lines.append)
    assert len([line for line in lines if "images of several sizes" in line and "crops to 4×4" in line]) == 1


def test_validation_of_ones_own_has_the_recipes_classes_and_size(place):
    dataset = load(own(place / "data", image_size=8, batch_size=2))
    assert {name: split.images.shape[1:] for name, split in dataset.splits().items()} == dict.fromkeys(
        ("train", "validation", "test"), (8, 8, 3)
    )
    held = load(own(place / "data", validation=0.5))
    assert (len(held.train), len(held.validation), len(held.test)) == (6, 6, 6)


def test_a_single_class_is_nothing_to_learn(place, tmp_path):
    with pytest.raises(ValueError, match="classes=1 is out of range; pass classes >= 2"):
        own(place / "data", classes=1)
    for split in ("train", "test"):
        write_class_folders(tmp_path, pixels(6), split, ("ant",))
    with pytest.raises(ValueError, match="folder has a single class, 'ant', .*--data-dir"):
        load(own(tmp_path))
    few = load(Recipe(classes=2, batch_size=10))
    assert few.class_names == ("0", "1") and np.unique(few.test.labels).tolist() == [0, 1]
