"""Finished runs on disk, and what makes two runs one."""

import dataclasses
import json

import pytest

from looksam.experiments.engine.reported import accuracies, reported_runs
from looksam.experiments.engine.runs import NOT_IN_KEY, VERSION, Run, Store, changed_settings
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
    **{"eta": 0.1, "start": 0.5, "stop": 0.75, "perturb": "kernel"},
    **{"groups": 2, "seed": 1, "eval_every": 2, "log_every": 3, "checkpoint_every": 4, "keep_checkpoints": 5},
    **{"image_column": "jpg", "label_column": "y", "num_classes": 7, "test_split": "val", "pooling": "token"},
    **{"gelu": "exact", "init_from": "run", "freeze": "stem", "patience": 3, "max_minutes": 5.0},
    **{"tensorboard": True, "wandb": "project"},
}
# where the data is, how often something is written, and the seed, by which the runs of a file are told apart
NO_MATTER = {
    *("seed", "data_dir", "download", "workers", "on_bad_image", "mesh"),
    *("eval_every", "log_every", "checkpoint_every", "keep_checkpoints", "max_minutes", "tensorboard", "wandb"),
}


def test_the_settings_of_this_test_are_those_of_a_recipe():
    assert OTHER.keys() == {field.name for field in dataclasses.fields(Recipe)}
    assert set(NOT_IN_KEY) == NO_MATTER


@pytest.mark.parametrize("name", OTHER)
def test_keys(name):
    other = RECIPE.replace(**{name: OTHER[name]})
    assert other != RECIPE
    assert (Run("train", other).key == Run("train", RECIPE).key) == (name in NO_MATTER)


def test_kinds_have_files_of_their_own():
    assert len({Run(kind, RECIPE).key for kind in ("train", "tune", "drift")}) == 3


def test_what_was_added_is_there_for_the_next_one(tmp_path):
    store = Store(tmp_path / "new" / "runs")
    first, second = (Run("train", RECIPE.replace(seed=seed)) for seed in (0, 1))
    assert store.get(first) is None and first not in store
    store.add(first, {"test_accuracy": 80.5})
    store.add(second, {"test_accuracy": 81.0})
    for same in (store, Store(store.folder)):
        assert same.get(first) == {"test_accuracy": 80.5} and same.get(second) == {"test_accuracy": 81.0}
        assert Run("tune", first.recipe) not in same and Run("train", RECIPE.replace(seed=2)) not in same
    elsewhere = Run("train", RECIPE.replace(data_dir="other", mesh="data=2"))
    assert store.get(elsewhere) == {"test_accuracy": 80.5}
    assert [path.name for path in store.folder.iterdir()] == [f"{first.key}.json"]  # no half-written file is left


def test_a_file_says_what_its_runs_were_trained_by(tmp_path):
    store, run = Store(tmp_path), Run("tune", RECIPE.replace(rho=0.3, seed=4))
    store.add(run, {})
    written = json.loads((tmp_path / f"{run.key}.json").read_text())
    assert written["recipe"] == {"method": "look_sam", "rho": 0.3}  # what is not a default
    assert (written["version"], written["kind"], list(written["runs"])) == (VERSION, "tune", ["4"])


def test_a_half_written_file_is_no_run(tmp_path):
    run = Run("train", RECIPE)
    (tmp_path / f"{run.key}.partial").write_text('{"runs": {"0"')
    store = Store(tmp_path)
    assert store.get(run) is None
    store.add(run, {"test_accuracy": 1.0})
    assert Store(tmp_path).get(run) == {"test_accuracy": 1.0}


@pytest.mark.parametrize("text", ['{"runs": {"0"', "", "[]", "{}", '{"runs": 3}'])
def test_a_damaged_file_is_named(tmp_path, text):
    run = Run("train", RECIPE)
    (tmp_path / f"{run.key}.json").write_text(text)
    (tmp_path / "timing-vit.json").write_text(text)
    with pytest.raises(ValueError, match=rf"{run.key}\.json .*; delete it, and its content is computed again"):
        Store(tmp_path).get(run)
    with pytest.raises(ValueError, match=r"timing-vit\.json .*; delete it"):
        Store(tmp_path).measurement("timing-vit")


def test_a_measurement_has_a_name_of_its_own(tmp_path):
    store = Store(tmp_path)
    assert store.measurement("timing-vit") is None
    store.write("timing-vit", {"ratios": {"base": [1.0, 1.0, 1.0]}})
    assert Store(tmp_path).measurement("timing-vit") == {"ratios": {"base": [1.0, 1.0, 1.0]}}


# --- versions ---------------------------------------------------------------------------------------------------

# Stored runs leave out what has its default value. If one of these defaults changes, raise VERSION in runs.py.
DEFAULTS = {
    **{"dataset": "digits", "validation": None, "classes": None, "train_limit": None, "label_noise": 0.0},
    **{"model": "mlp", "image_size": None, "width": None, "depth": None, "widen": None, "heads": None, "patch": None},
    **{"dropout": None, "stochastic_depth": None, "dtype": "float32", "crop_padding": None, "randaugment": 0},
    **{"randaugment_magnitude": 10.0, "mixup": 0.0, "label_smoothing": 0.0, "optimizer": "sgdm", "learning_rate": 0.1},
    **{"scale_from_batch": None, "schedule": "cosine", "warmup_steps": 0, "weight_decay": 0.0, "decay_all": True},
    **{"momentum": 0.9, "clip_norm": None, "batch_size": 128, "across_epochs": False, "epochs": 100, "steps": None},
    **{"method": "base", "rho": 0.05, "alpha": 0.7, "k": 5, "p": 2.0, "scaling": "normalized", "microbatch": None},
    **{"eta": 0.01, "start": 0, "stop": None, "perturb": None, "groups": None, "image_column": None},
    **{"label_column": None, "num_classes": None, "test_split": None, "pooling": None, "gelu": None},
    **{"init_from": None, "freeze": None, "patience": None},
}


def test_the_defaults_that_stored_runs_rest_on():
    assert DEFAULTS.keys() == OTHER.keys() - NO_MATTER
    assert Recipe().to_dict().items() >= DEFAULTS.items()
    assert changed_settings(Recipe(seed=3, data_dir="elsewhere")) == {}


def test_a_new_setting_keeps_the_key(monkeypatch):
    """A recipe with one setting more, at its default, is stored in the same file."""

    @dataclasses.dataclass(frozen=True)
    class Longer(Recipe):
        new_setting: int = 1

    monkeypatch.setattr("looksam.experiments.engine.runs._DEFAULTS", vars(Longer()))
    settings = {"method": "sam", "rho": 0.3}
    assert Run("train", Longer(**settings)).key == Run("train", Recipe(**settings)).key
    assert Run("train", Longer(**settings, new_setting=2)).key != Run("train", Recipe(**settings)).key


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"runs": {}, "ratios": {}}, "has format version 1, and this looksam reads version 2; delete it, and its"),
        ({"version": 1, "runs": {}}, "has format version 1, and this looksam reads version 2; delete it, and its"),
        ({"version": 3}, "has format version 3, and this looksam reads version 2; install a newer looksam"),
        ({"version": "x"}, "has format version x, and this looksam reads version 2; install a newer looksam"),
        ({"version": VERSION}, "has no 'runs'; delete it"),
    ],
)
def test_another_version_is_refused(tmp_path, content, message):
    run = Run("train", RECIPE)
    (tmp_path / f"{run.key}.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"{run.key}\.json {message}"):
        Store(tmp_path).get(run)


def test_what_is_not_trained_is_not_reported(tmp_path):
    store = Store(tmp_path)
    for run in reported_runs([RECIPE], 3)[::2]:
        store.add(run, {"test_accuracy": 80.0 + run.recipe.seed})
    with pytest.raises(ValueError, match=r"seeds \[1\] of train-.* are not stored; run `looksam reproduce`"):
        accuracies(store, RECIPE, 3)
    store.add(reported_runs([RECIPE], 3)[1], {"test_accuracy": 70.0})
    assert accuracies(store, RECIPE, 3) == [80.0, 70.0, 82.0]
