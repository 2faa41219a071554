"""Evaluation: elsewhere, on other data, on any split, and per class."""

import csv

import numpy as np
import pytest
from flowers import NAMES, PER_CLASS, write_flowers

from looksam.trainer import RunError, evaluate_run, load_model
from looksam.trainer.trained.evaluation import write_csv
from looksam.trainer.trained.prediction import image_files, read_image

pytestmark = pytest.mark.usefixtures("as_users_run_it")


def test_scores_are_those_of_the_run_wherever_its_data_is(flowers_run, tmp_path):
    run_dir, result = flowers_run
    ours = evaluate_run(run_dir)
    assert ours["test_accuracy"] == result["test_accuracy"]
    assert ours["test_loss"] == pytest.approx(result["test_loss"], rel=1e-6)
    assert (ours["split"], ours["test_images"], ours["step"]) == ("test", 3 * PER_CLASS["test"], result["step"])
    elsewhere = write_flowers(tmp_path / "elsewhere")  # the same images
    assert evaluate_run(run_dir, data_dir=str(elsewhere)) == ours
    with pytest.raises(RunError, match=r"split='validation' is not in the data; it has train, test"):
        evaluate_run(run_dir, split="validation")


def test_counts_by_class_are_those_of_the_predictions(flowers_run, tmp_path):
    run_dir, _ = flowers_run
    other = write_flowers(tmp_path / "other", side=10, seed=1)
    model = load_model(run_dir)
    expected = np.zeros((3, 3), int)
    for label, name in enumerate(NAMES):
        images = np.stack([read_image(path, model) for path in image_files([other / "train" / name])])
        for predicted in model.logits(images).argmax(-1):
            expected[label, predicted] += 1
    result = evaluate_run(run_dir, dataset="folder", data_dir=str(other), split="train", confusion=True)
    np.testing.assert_array_equal(result["confusion"], expected)
    assert result["train_accuracy"] == pytest.approx(100 * np.trace(expected) / expected.sum())
    assert [row["class"] for row in result["per_class"]] == list(NAMES) == result["class_names"]
    assert [row["accuracy"] for row in result["per_class"]] == pytest.approx(100 * np.diag(expected) / expected.sum(1))

    write_csv(tmp_path / "confusion.csv", result)
    head, *rows = csv.reader((tmp_path / "confusion.csv").read_text().splitlines())
    assert head == ["class", "images", "accuracy", *NAMES]
    assert [[int(n) for n in row[3:]] for row in rows] == expected.tolist()


@pytest.mark.parametrize(
    ("names", "message"),
    [(("daisy", "orchid", "tulip"), "'orchid' as class 1, and 'rose' in the run"), (("a", "b"), "2 classes, and 3")],
)
def test_data_of_other_classes_is_refused(flowers_run, tmp_path, names, message):
    write_flowers(tmp_path / "other", names)
    with pytest.raises(RunError, match=f"the data has {message}.*pass data of the same classes"):
        evaluate_run(flowers_run[0], data_dir=str(tmp_path / "other"))
