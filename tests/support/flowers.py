"""A tiny dataset of class folders, and a run on it."""

import pathlib

import jax
import numpy as np
from PIL import Image

from looksam.trainer import Recipe, run

NAMES = ("daisy", "rose", "tulip")
PER_CLASS = {"train": 8, "test": 4}
SIDE = 8


def write_flowers(folder, names=NAMES, side=SIDE, seed=0):
    """Writes images of noise, each class with more of one colour."""
    rng = np.random.default_rng(seed)
    for split, count in PER_CLASS.items():
        for colour, name in enumerate(names):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                image = rng.integers(0, 200, (side, side, 3))
                image[..., colour % 3] += 55
                Image.fromarray(image.astype(np.uint8)).save(folder / split / name / f"{i}.png")
    return folder


def recipe_for(folder, **changes):
    """A small ViT on class folders."""
    small = Recipe(
        dataset="folder", model="vit", width=12, depth=2, mesh="data=1", batch_size=12, epochs=3, log_every=2
    )
    return small.replace(data_dir=str(folder), learning_rate=0.05, method="look_sam", k=2).replace(**changes)


def train_flowers(folder):
    """Trains on flowers in a folder; returns the folder of the run and its result."""
    data = write_flowers(pathlib.Path(folder) / "data")
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        result = run(recipe_for(data), folder / "run", quiet=True, report=lambda line: None)
    return folder / "run", result
