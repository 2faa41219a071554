"""The studies of the small scale."""

import pytest

from looksam.experiments import small_scale, table_large_batch
from looksam.experiments.engine.runs import Store
from looksam.experiments.engine.search import TUNING_SEED
from looksam.methods import parse_row

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
    assert {run.recipe.seed for row in runs for run in runs[row]} == {TUNING_SEED}


@pytest.mark.parametrize("study", STUDIES)
def test_tuning_holds_images_out(study):
    assert study.recipe.validation and study.recipe.train_limit
    assert study.recipe.train_limit % study.recipe.batch_size == 0  # every image in every epoch


def test_batches_of_lamb_differ_in_steps_alone():
    one, *others = (study.recipe for study in small_scale.lamb_studies().values() if not study.recipe.label_noise)
    for other in others:
        assert other.replace(batch_size=one.batch_size, warmup_steps=one.warmup_steps) == one
        assert other.warmup_steps * other.batch_size == one.warmup_steps * one.batch_size  # as many epochs
