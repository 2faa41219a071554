"""Training end to end on real images, if they are in LOOKSAM_DATA, or in shared/data next to the project."""

import os
import pathlib

import pytest

from looksam.trainer import recipes, run
from looksam.trainer.run_folder.metrics import read_metrics

DATA = pathlib.Path(os.environ.get("LOOKSAM_DATA", pathlib.Path(__file__).parents[4] / "shared/data"))


pytestmark = pytest.mark.usefixtures("as_users_run_it")


def train(name, folder, tmp_path, **settings):
    if not (DATA / folder).exists():
        pytest.skip(f"no {folder} in {DATA}")
    recipe = recipes.find(name).recipe.replace(
        data_dir=str(DATA / folder), log_every=1, epochs=1, mesh="data=1", **settings
    )
    result = run(recipe, tmp_path, quiet=True)
    losses = [line["loss"] for line in read_metrics(tmp_path) if line["split"] == "train"]
    return result, losses


def test_cifar100_trains_a_small_resnet(tmp_path):
    result, losses = train("cifar100-small-resnet", "cifar100", tmp_path, classes=10, batch_size=50, steps=5)
    assert result["step"] == len(losses) == 5
    assert losses[-1] < losses[0]
    assert 0 <= result["test_accuracy"] < 20


def test_jpegs_at_224_train_a_vit_with_randaugment_and_mixup(tmp_path):
    small = {"model": "vit", "patch": 32, "width": 48, "depth": 1, "heads": 3}
    result, losses = train("imagenette-vit-s32", "imagenette224-sample", tmp_path, **small, batch_size=8, steps=2)
    assert result["step"] == len(losses) == 2
