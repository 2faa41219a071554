"""Equal tuning: as many settings for each method, selection by held-out accuracy alone, other seeds for the reports."""

import numpy as np
import pytest

from looksam.experiments import sam_comparison, small_scale, table_large_batch
from looksam.experiments.engine.runs import Store
from looksam.experiments.engine.tuner import (
    TUNING_SEEDS,
    Study,
    accuracies,
    own_settings,
    reported_runs,
    starting_settings,
)
from looksam.methods import METHODS, settings_of
from looksam.trainer.recipe import Recipe

SMALL = Study(
    Recipe(validation=0.2),
    {
        "base": [{"learning_rate": rate} for rate in (0.1, 0.2, 0.3)],
        "sam": [{"of_base": share, "rho": 0.1} for share in (1.0, 1 / 3, 0.1)],
        "look_layer_sam:literal": [{"of_base": 1.0, "rho": 0.1, "alpha": alpha} for alpha in (0.1, 0.3, 0.5)],
    },
)
STUDIES = [
    small_scale.resnet_studies()["clean labels"],
    small_scale.vit_studies()["30 % random labels"],
    *small_scale.lamb_studies().values(),
]


def tune(store, study, method, scores):
    """Stores what came out of a method's tuning: for each setting, the accuracies of its seeds."""
    for runs, accuracy in zip(study.tuning(store, method), scores, strict=True):
        for run, value in zip(runs, accuracy, strict=True):
            store.add(run, {"validation_accuracy": [99.0, value]})  # the last point of the curve counts


@pytest.mark.parametrize("study", STUDIES)
def test_every_method_of_a_study_tries_as_many_settings(study):
    assert len({len(grid) for grid in study.grids.values()}) == 1
    for grid in study.grids.values():
        assert len({tuple(setting.items()) for setting in grid}) == len(grid)  # no setting twice


@pytest.mark.parametrize("study", STUDIES)
def test_grids_vary_the_hyperparameters_of_their_method_alone(study):
    for method, grid in study.grids.items():
        varied = {"base": {"learning_rate"}, "sam": {"rho"}, "sam_k": {"rho"}}.get(method, {"rho", "alpha"})
        assert all(setting.keys() - {"of_base"} == varied for setting in grid)


@pytest.mark.parametrize("study", STUDIES)
def test_all_but_the_base_try_the_same_shares_of_its_rate(study):
    shares = [sorted(setting["of_base"] for setting in grid) for name, grid in study.grids.items() if name != "base"]
    assert all(other == shares[0] for other in shares) and max(shares[0]) == 1.0


def test_studies_have_the_methods_of_their_tables():
    for studies in (small_scale.resnet_studies(), small_scale.vit_studies()):
        assert all(tuple(study.grids) == sam_comparison.TUNED for study in studies.values())
    assert all(tuple(study.grids) == table_large_batch.ROWS for study in small_scale.lamb_studies().values())


@pytest.mark.parametrize("study", STUDIES)
def test_tuning_holds_images_out(study):
    assert study.recipe.validation and study.recipe.train_limit
    assert study.recipe.train_limit % study.recipe.batch_size == 0  # every image in every epoch


def test_batches_of_lamb_differ_in_steps_alone():
    one, *others = (study.recipe for study in small_scale.lamb_studies().values() if not study.recipe.label_noise)
    for other in others:
        assert other.replace(batch_size=one.batch_size, warmup_steps=one.warmup_steps) == one
        assert other.warmup_steps * other.batch_size == one.warmup_steps * one.batch_size  # as many epochs


def test_the_best_mean_over_the_tuning_seeds_is_selected(tmp_path):
    store = Store(tmp_path)
    assert SMALL.scores(store, "base") is None and SMALL.selected(store, "base") == {"learning_rate": 0.1}
    tune(store, SMALL, "base", [(80.0, 60.0), (71.0, 72.0), (90.0, 40.0)])  # the highest single one is not selected
    np.testing.assert_allclose(SMALL.scores(store, "base"), [70.0, 71.5, 65.0])
    assert SMALL.selected(store, "base") == {"learning_rate": 0.2}


def test_others_start_from_the_rate_of_the_base(tmp_path):
    store = Store(tmp_path)
    tune(store, SMALL, "base", [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)])
    runs = [run.recipe for runs in SMALL.tuning(store, "sam") for run in runs]
    assert [recipe.learning_rate for recipe in runs] == [0.3, 0.3, 0.1, 0.1, 0.03, 0.03]
    assert {recipe.rho for recipe in runs} == {0.1}
    tune(store, SMALL, "sam", [(1.0, 1.0), (4.0, 4.0), (3.0, 3.0)])
    assert SMALL.tuned(store, "sam") == SMALL.recipe.replace(method="sam", learning_rate=0.1, rho=0.1)
    assert SMALL.tuned(store, "base") == SMALL.recipe.replace(method="base", learning_rate=0.3)
    assert SMALL.tuned(store, "sam", k=7).k == 7


def test_nothing_is_known_of_the_others_before_the_base_is_tuned(tmp_path):
    store = Store(tmp_path)
    tune(
        store, SMALL, "sam", [(1.0, 1.0), (4.0, 4.0), (3.0, 3.0)]
    )  # at the first rate, which is used until one is selected
    assert SMALL.scores(store, "sam") is None
    tune(store, SMALL, "base", [(3.0, 3.0), (2.0, 2.0), (1.0, 1.0)])  # which then is selected
    assert SMALL.scores(store, "sam") == [1.0, 4.0, 3.0]
    other = Study(SMALL.recipe, SMALL.grids | {"sam": SMALL.grids["sam"][:1]})
    assert other.scores(store, "sam") == [1.0]  # a grid of its own


def test_a_scaling_is_part_of_a_method(tmp_path):
    assert settings_of("look_layer_sam:literal") == {"method": "look_layer_sam", "scaling": "literal"}
    assert settings_of("sam") == {"method": "sam"}
    recipe = SMALL.tuned(Store(tmp_path), "look_layer_sam:literal")
    assert (recipe.method, recipe.scaling, recipe.alpha) == ("look_layer_sam", "literal", 0.1)


def test_stages_tune_the_base_first(tmp_path):
    store = Store(tmp_path)
    base, rest = SMALL.stages(store, ("base", "sam"))
    assert [run.recipe.method for run in base] == ["base"] * 6 and [run.recipe.method for run in rest] == ["sam"] * 6
    assert {run.kind for run in [*base, *rest]} == {"tune"}


def test_seeds_of_tuning_and_of_reports_are_disjoint(tmp_path):
    tuning = {run.recipe.seed for stage in SMALL.stages(Store(tmp_path), SMALL.grids) for run in stage}
    reported = reported_runs([SMALL.recipe], 50)
    assert tuning == set(TUNING_SEEDS) and len(tuning) == len(TUNING_SEEDS)
    assert tuning.isdisjoint(run.recipe.seed for run in reported)
    assert {run.kind for run in reported} == {"train"}


def test_what_is_not_trained_is_not_reported(tmp_path):
    store = Store(tmp_path)
    for run in reported_runs([SMALL.recipe], 3)[::2]:
        store.add(run, {"test_accuracy": 80.0 + run.recipe.seed})
    with pytest.raises(ValueError, match=r"seeds \[1\] of train-.* are not stored; run `looksam reproduce`"):
        accuracies(store, SMALL.recipe, 3)
    store.add(reported_runs([SMALL.recipe], 3)[1], {"test_accuracy": 70.0})
    assert accuracies(store, SMALL.recipe, 3) == [80.0, 70.0, 82.0]


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
