"""Finished cells on disk, and what makes two cells one."""

import dataclasses
import json

import pytest

from looksam.experiments.store import Store
from looksam.experiments.task import APART, Task, digest
from looksam.trainer.recipe import Recipe

RECIPE = Recipe(method="look_sam")
# for each setting, another value than the default
OTHER = {
    **{"dataset": "cifar100", "data_dir": "elsewhere", "download": True, "validation": 0.2, "classes": 3},
    **{"train_limit": 100, "label_noise": 0.3, "on_bad_image": "skip", "workers": 2, "model": "vit", "image_size": 16},
    **{"width": 8, "depth": 1, "widen": 2, "heads": 2, "patch": 4, "dropout": 0.1, "stochastic_depth": 0.1},
    **{"dtype": "bfloat16", "crop_padding": 4, "randaugment": 2, "randaugment_magnitude": 5.0, "mixup": 0.2},
    **{"label_smoothing": 0.1, "optimizer": "lamb", "learning_rate": 0.2, "scale_from_batch": 64},
    **{"schedule": "linear", "warmup_steps": 3, "weight_decay": 0.1, "decay_all": False, "momentum": 0.8},
    **{"clip_norm": 1.0, "batch_size": 64, "across_epochs": True, "epochs": 3, "steps": 7, "method": "sam"},
    **{"rho": 0.1, "alpha": 0.5, "k": 2, "p": 3.0, "scaling": "literal", "mesh": "data=1", "microbatch": 8},
    **{"groups": 2, "seed": 1, "eval_every": 2, "log_every": 3, "checkpoint_every": 4, "keep_checkpoints": 5},
}
NO_MATTER = {  # where the data is, how often something is written, and the seed, which is told apart within a cell
    *("seed", "data_dir", "download", "workers", "on_bad_image", "mesh"),
    *("eval_every", "log_every", "checkpoint_every", "keep_checkpoints"),
}


def test_the_settings_of_this_test_are_those_of_a_recipe():
    assert OTHER.keys() == {field.name for field in dataclasses.fields(Recipe)}
    assert set(APART) == NO_MATTER


@pytest.mark.parametrize("name", OTHER)
def test_keys(name):
    other = RECIPE.replace(**{name: OTHER[name]})
    assert other != RECIPE
    assert (digest(other) == digest(RECIPE)) == (name in NO_MATTER)


def test_kinds_are_cells_of_their_own():
    assert len({Task(kind, RECIPE).key for kind in ("train", "tune", "drift")}) == 3


def test_what_was_added_is_there_for_the_next_one(tmp_path):
    store = Store(tmp_path / "new" / "cells")
    first, second = (Task("train", RECIPE.replace(seed=seed)) for seed in (0, 1))
    assert store.get(first) is None and first not in store
    store.add(first, {"test_accuracy": 80.5})
    store.add(second, {"test_accuracy": 81.0})
    for same in (store, Store(store.folder)):
        assert same.get(first) == {"test_accuracy": 80.5} and same.get(second) == {"test_accuracy": 81.0}
        assert Task("tune", first.recipe) not in same and Task("train", RECIPE.replace(seed=2)) not in same
    elsewhere = Task("train", RECIPE.replace(data_dir="other", mesh="data=2"))
    assert store.get(elsewhere) == {"test_accuracy": 80.5}
    assert [path.name for path in store.folder.iterdir()] == [f"{first.key}.json"]  # no half-written file is left


def test_a_cell_says_what_it_was_trained_by(tmp_path):
    store, task = Store(tmp_path), Task("tune", RECIPE.replace(rho=0.3, seed=4))
    store.add(task, {})
    written = json.loads((tmp_path / f"{task.key}.json").read_text())
    settings = RECIPE.replace(rho=0.3).to_dict()
    assert written["recipe"] == {name: value for name, value in settings.items() if name not in NO_MATTER}
    assert list(written["runs"]) == ["4"]


def test_a_half_written_file_is_no_cell(tmp_path):
    task = Task("train", RECIPE)
    (tmp_path / f"{task.key}.partial").write_text('{"runs": {"0"')
    store = Store(tmp_path)
    assert store.get(task) is None
    store.add(task, {"test_accuracy": 1.0})
    assert Store(tmp_path).get(task) == {"test_accuracy": 1.0}


@pytest.mark.parametrize("text", ['{"runs": {"0"', "", "[]", "{}", '{"runs": 3}'])
def test_a_damaged_file_is_named(tmp_path, text):
    task = Task("train", RECIPE)
    (tmp_path / f"{task.key}.json").write_text(text)
    (tmp_path / "timing-vit.json").write_text(text)
    with pytest.raises(ValueError, match=rf"{task.key}\.json .*; delete it, and what it held is made again"):
        Store(tmp_path).get(task)
    with pytest.raises(ValueError, match=r"timing-vit\.json .*; delete it"):
        Store(tmp_path).measurement("timing-vit")


def test_a_measurement_has_a_name_of_its_own(tmp_path):
    store = Store(tmp_path)
    assert store.measurement("timing-vit") is None
    store.write("timing-vit", {"ratios": {"base": [1.0, 1.0, 1.0]}})
    assert Store(tmp_path).measurement("timing-vit") == {"ratios": {"base": [1.0, 1.0, 1.0]}}
