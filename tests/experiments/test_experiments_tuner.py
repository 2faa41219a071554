"""The studies of the small scale, the runs that are reported, and the settings to try around a recipe."""

import pytest

from looksam.experiments import small_scale, table_large_batch
from looksam.experiments.engine.runs import Store
from looksam.experiments.engine.tuner import (
    accuracies,
    own_settings,
    reported_runs,
    starting_settings,
)
from looksam.methods import METHODS, parse_row
from looksam.trainer.recipe import Recipe

RECIPE = Recipe(validation=0.2)
STUDIES = [
    small_scale.resnet_studies()["clean labels"],
    small_scale.vit_studies()["30 % random labels"],
    *small_scale.lamb_studies().values(),
]


def test_studies_have_the_rows_of_their_tables():
    for studies in (small_scale.resnet_studies(), small_scale.vit_studies()):
        assert all(tuple(study.starts) == small_scale.SAM_ROWS for study in studies.values())
    assert all(tuple(study.starts) == table_large_batch.ROWS for study in small_scale.lamb_studies().values())


@pytest.mark.parametrize("study", STUDIES)
def test_rules_tune_their_own_hyperparameters_and_the_base_its_weight_decay(study):
    for row, start in study.starts.items():
        varied = {"base": {"learning_rate", "weight_decay"}}.get(
            row, {"rho", "alpha"} & {*parse_row(row).method.settings}
        )
        assert start.keys() == varied and min(start.values()) > 0


@pytest.mark.parametrize("study", STUDIES)
def test_tuning_runs_are_as_long_as_the_reported_ones_and_have_other_seeds(study, tmp_path):
    runs = {row: study.expected(Store(tmp_path), row) for row in study.starts}
    assert {(run.kind, run.recipe.epochs) for row in runs for run in runs[row]} == {("tune", study.recipe.epochs)}
    for row, asked in runs.items():
        far = row in ("sam_10", "look_sam_10", "sam_20", "look_sam_20")
        assert {run.recipe.seed for run in asked} == ({100} if far else {100, 101})
    reported = reported_runs([study.recipe], 50)
    assert {run.kind for run in reported} == {"train"} and max(run.recipe.seed for run in reported) < 100


@pytest.mark.parametrize("study", STUDIES)
def test_tuning_holds_images_out(study):
    assert study.recipe.validation and study.recipe.train_limit
    assert study.recipe.train_limit % study.recipe.batch_size == 0  # every image in every epoch


def test_batches_of_lamb_differ_in_steps_alone():
    one, *others = (study.recipe for study in small_scale.lamb_studies().values() if not study.recipe.label_noise)
    for other in others:
        assert other.replace(batch_size=one.batch_size, warmup_steps=one.warmup_steps) == one
        assert other.warmup_steps * other.batch_size == one.warmup_steps * one.batch_size  # as many epochs


def test_what_is_not_trained_is_not_reported(tmp_path):
    store = Store(tmp_path)
    for run in reported_runs([RECIPE], 3)[::2]:
        store.add(run, {"test_accuracy": 80.0 + run.recipe.seed})
    with pytest.raises(ValueError, match=r"seeds \[1\] of train-.* are not stored; run `looksam reproduce`"):
        accuracies(store, RECIPE, 3)
    store.add(reported_runs([RECIPE], 3)[1], {"test_accuracy": 70.0})
    assert accuracies(store, RECIPE, 3) == [80.0, 70.0, 82.0]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "base"])
def test_a_methods_own_settings_are_those_of_the_recipe(method):
    recipe = Recipe(rho=0.2, alpha=0.6, k=3)
    own = {name: getattr(recipe, name) for name in METHODS[method].settings if name in ("rho", "alpha", "k")}
    assert own_settings(recipe, method) == own


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
