"""Exported models in PyTorch: the logits of the trainer, without JAX; and in JAX, without looksam."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
import torch
from PIL import Image

from looksam.torch import load_exported
from looksam.trainer.data import Dataset, Images
from looksam.trainer.models import build_model
from looksam.trainer.trained.exporting import export_model
from looksam.trainer.trained.trained_model import TrainedModel

pytestmark = pytest.mark.usefixtures("as_users_run_it")

NAMES = ("daisy", "rose", "tulip")
MODELS = {
    "mlp": ((8, 8, 1), {"widths": (7, 5)}),
    "resnet": ((8, 8, 3), {"width": 4, "blocks": (2, 2, 2)}),
    "resnet bottleneck": ((72, 72, 3), {"width": 4, "blocks": (1, 2), "bottleneck": True}),
    "wide_resnet": ((8, 8, 3), {"widen": 1}),
    "vit": ((8, 12, 3), {"width": 12, "depth": 2, "patch": 4}),
    "vit as in public weights": ((8, 8, 3), {"width": 12, "depth": 1, "patch": 4, "pooling": "token", "gelu": "exact"}),
}


def trained(case, crops=False):
    """A model with random weights and statistics, as if it were trained."""
    shape, options = MODELS[case]
    builder = case.partition(" ")[0]
    model = build_model(builder, image_shape=shape, num_classes=3, **options)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params, stats = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)
    empty = Images(np.zeros((0, *shape), np.uint8), np.zeros(0, np.int32))
    channels = shape[2]
    data = Dataset("flowers", empty, empty, 3, shape, (0.4,) * channels, (0.2,) * channels, class_names=NAMES)
    stats = jax.tree.map(lambda x: np.abs(x) + 0.5, stats)
    return TrainedModel("runs/flowers", 7, builder, builder, options, "float32", model, params, stats, data, crops)


def pixels(shape, count=5):
    return np.random.default_rng(1).integers(0, 256, (count, *shape), np.uint8)


@pytest.mark.parametrize("case", MODELS)
def test_logits_are_those_of_the_trainer(case, tmp_path):
    model = trained(case)
    export_model(model, tmp_path, stablehlo=False)
    exported = load_exported(tmp_path)
    images = pixels(model.image_shape)
    with torch.no_grad():
        logits = exported(exported.normalize(torch.tensor(images).permute(0, 3, 1, 2)))
    np.testing.assert_allclose(logits, model.logits(images), rtol=1e-5, atol=1e-5)
    assert exported.class_names == NAMES and not exported.training
    np.testing.assert_array_equal(TrainedModel.of_export(tmp_path).logits(images), model.logits(images))


IN_TORCH = """
import sys
sys.modules.update(dict.fromkeys(["jax", "jaxlib", "flax", "optax", "orbax"]))  # None: importing one raises
import json, torch
from looksam.torch import load_exported
model = load_exported(sys.argv[1])
with torch.no_grad():
    print(json.dumps([model(model.preprocess(path)).tolist()[0] for path in sys.argv[2:]]))
"""
IN_JAX = """
import sys
sys.modules.update(dict.fromkeys(["looksam", "flax", "optax"]))
import json, jax.export, numpy as np
from PIL import Image
model = jax.export.deserialize(open(sys.argv[1] + "/model.stablehlo", "rb").read())
assert set(model.platforms) >= {"cpu", "cuda", "tpu"}
images = np.stack([np.asarray(Image.open(path)) for path in sys.argv[2:]])
print(json.dumps([np.asarray(model.call(batch))[0].tolist() for batch in (images, images[1:])]))
"""


def test_an_export_runs_without_jax_and_without_looksam(tmp_path):
    model = trained("resnet")
    result = export_model(model, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(result["files"])
    images = pixels(model.image_shape, count=2)
    paths = [str(tmp_path / f"{i}.png") for i in range(2)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "out"), *paths], stdout=-1, stderr=-1, text=True)
        for script in (IN_TORCH, IN_JAX)
    ]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        np.testing.assert_allclose(json.loads(out), model.logits(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("crops", [True, False])
def test_images_are_prepared_as_in_the_trainer(crops, tmp_path):
    from looksam.trainer.trained.prediction import read_image

    model = trained("resnet", crops)
    export_model(model, tmp_path, stablehlo=False)
    exported = load_exported(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (30, 41, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    ours, theirs = (
        exported._pixels(tmp_path / "noise.png")[0].permute(1, 2, 0),
        read_image(tmp_path / "noise.png", model),
    )
    difference = np.abs(ours.numpy().astype(int) - theirs)
    assert difference.max() <= (0 if crops else 1)  # rounding of another library's resize


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no config.json; pass the folder that `looksam export` wrote"):
        load_exported(tmp_path)
    export_model(trained("vit"), tmp_path, stablehlo=False)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"version": 2}, "version 2, and this looksam reads 'looksam', version 1"),
        ({"builder": "mine.py:build"}, "'mine.py:build' has no PyTorch module here"),
        ({"options": {**config["options"], "depth": 1}}, "'blocks.1.*' is in one of them only; export it again"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=message):
            load_exported(tmp_path)
