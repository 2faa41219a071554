"""Training on images that are decoded as they are read: a folder of pictures of all sizes."""

import jax
import numpy as np
import pytest
from PIL import Image

from looksam.trainer import run
from looksam.trainer.batches import StreamedBatches, load, make_eval_batches, make_train_batches
from looksam.trainer.parallel import SingleDeviceLayout
from looksam.trainer.recipe import Recipe

pytestmark = pytest.mark.usefixtures("as_users_run_it")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 5)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i}.jpg")
    small = {"image_size": 16, "batch_size": 6, "epochs": 2, "mesh": "data=1"}
    return Recipe(dataset="folder", data_dir=str(folder), method="sam_k", k=2, **small)


def test_a_stream_starts_anywhere_and_gives_the_same_batches(recipe):
    dataset = load(recipe)
    batches, other = (make_train_batches(dataset, recipe, SingleDeviceLayout()) for _ in range(2))
    assert isinstance(batches, StreamedBatches) and batches.epoch_schedule.steps(1) == 4
    in_order = [batches.arguments(i) for i in range(6)]  # across an epoch's end
    jax.tree.map(np.testing.assert_array_equal, other.arguments(5), in_order[5])
    assert in_order[0][0].shape == (6, 16, 16, 3) and in_order[0][0].dtype == np.uint8
    batches.close()
    other.close()


def test_every_test_picture_counts_once(recipe):
    batches = list(make_eval_batches(load(recipe), recipe))
    assert sum(float(batch.weight.sum()) for batch in batches) == 10
    labels = np.concatenate([batch.labels[batch.weight > 0] for batch in batches])
    np.testing.assert_array_equal(np.bincount(labels), [5, 5])


def test_a_run_on_a_stream_resumes_where_it_stopped(recipe, tmp_path):
    whole = run(recipe, tmp_path / "whole", quiet=True)
    run(recipe.replace(steps=3), tmp_path / "cut", quiet=True)
    resumed = run(recipe, tmp_path / "cut", quiet=True)
    assert resumed["step"] == whole["step"] == 8
    assert (resumed["test_loss"], resumed["test_accuracy"]) == (whole["test_loss"], whole["test_accuracy"])
