"""Predictions for files: the logits of evaluation, and what cannot be read."""

import shutil

import numpy as np
import pytest
from flowers import NAMES
from PIL import Image

from looksam.trainer import RunError, load_model, predict_run
from looksam.trainer.batches import load, make_eval_batches
from looksam.trainer.loop import restored
from looksam.trainer.run_folder.run_directory import read_recipe
from looksam.trainer.trained.prediction import image_files, predict_images, read_image

pytestmark = pytest.mark.usefixtures("as_users_run_it")


def test_predictions_are_those_of_evaluation(flowers_run):
    run_dir, result = flowers_run
    model = load_model(run_dir)
    data = run_dir.parent / "data"
    files = image_files([data / "test"])
    logits = model.logits(np.stack([read_image(path, model) for path in files]))
    with restored(run_dir) as (training, step, state):
        [batch] = make_eval_batches(training.dataset, training.recipe)
        expected = model.logits_function()(state.params, state.stats, batch.images)
    assert step == model.step == result["step"]
    np.testing.assert_allclose(logits, np.asarray(expected)[: len(files)], rtol=1e-5, atol=1e-6)
    labels = np.asarray(batch.labels)[: len(files)]
    assert 100 * np.mean(logits.argmax(-1) == labels) == pytest.approx(result["test_accuracy"])

    predictions = list(predict_images(model, files, top=2))
    assert [p.guesses[0].label for p in predictions] == logits.argmax(-1).tolist()
    guesses = predictions[0].guesses
    assert [g.name for g in guesses] == [NAMES[g.label] for g in guesses] and len(guesses) == 2
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert guesses[0].probability == pytest.approx(probabilities.max(), rel=1e-5)
    assert guesses[0].probability > guesses[1].probability


def test_the_data_of_the_run_need_not_be_there(flowers_run, tmp_path):
    moved = tmp_path / "run"
    shutil.copytree(flowers_run[0], moved)
    image = tmp_path / "image.png"
    shutil.copy(next((flowers_run[0].parent / "data/test/rose").iterdir()), image)
    recipe = (moved / "recipe.json").read_text()
    (moved / "recipe.json").write_text(recipe.replace(str(flowers_run[0].parent / "data"), "gone"))
    assert predict_run(moved, [image]) == predict_run(flowers_run[0], [image])
    with pytest.raises(FileNotFoundError):
        load(read_recipe(moved))
    (moved / "data.json").unlink()
    with pytest.raises(RunError, match="has no data.json"):
        predict_run(moved, [image])


def test_unreadable_images_leave_the_others(flowers_run, tmp_path):
    Image.fromarray(np.full((20, 13, 4), 99, np.uint8)).save(tmp_path / "a.png")  # another size, and transparent
    Image.fromarray(np.full((8, 8), 9, np.uint8)).save(tmp_path / "b.gif")  # grey
    (tmp_path / "c.jpg").write_bytes(b"no image")
    found = predict_run(flowers_run[0], [tmp_path / "*.png", tmp_path / "missing.png", tmp_path])
    assert [(p.image.removeprefix(str(tmp_path)), len(p.guesses), p.error) for p in found] == [
        ("/a.png", 3, None),
        ("/missing.png", 0, "No such file or directory"),
        ("/a.png", 3, None),
        ("/b.gif", 3, None),
        ("/c.jpg", 0, found[-1].error),
    ]
    assert "cannot identify image file" in found[-1].error or "none of JPEG" in found[-1].error
    with pytest.raises(ValueError, match="nothing.*has no images .*.jpg.*; pass files, folders or patterns that do"):
        predict_run(flowers_run[0], [tmp_path / "nothing*"])
    with pytest.raises(ValueError, match="top=0 is out of range"):
        predict_run(flowers_run[0], [tmp_path], top=0)
