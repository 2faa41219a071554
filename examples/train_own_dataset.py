"""Your own arrays in the trainer, with LookSAM: pip install 'looksam[train]'

python examples/train_own_dataset.py
"""

import tempfile

import numpy as np
import sklearn.datasets

from looksam.trainer import Recipe, load_model, run
from looksam.trainer.data import Dataset, Images


def load(request) -> Dataset:
    """A dataset is uint8 pixels of shape (images, height, width, channels), and one label per image."""
    digits = sklearn.datasets.load_digits()
    pixels = (digits.images[..., None] * 15).astype(np.uint8)
    rows = np.random.default_rng(0).permutation(len(pixels))
    train, test = (Images(pixels[part], digits.target[part].astype(np.int32)) for part in (rows[:1200], rows[1200:]))
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    return Dataset.from_images("own digits", train, test, num_classes=10, class_names=tuple(names))


RECIPE = Recipe(
    dataset=f"{__file__}:load",  # a name, so that the run can be resumed and evaluated in another process
    model="mlp",
    batch_size=64,
    epochs=15,
    learning_rate=0.05,
    method="look_sam",
    rho=0.2,
    alpha=0.3,
)


def main() -> float:
    with tempfile.TemporaryDirectory() as folder:
        result = run(RECIPE, folder)
        model = load_model(folder)
    print(f"test accuracy {result['test_accuracy']:.1f} %; the classes are {', '.join(model.data.class_names)}")
    return result["test_accuracy"] / 100


if __name__ == "__main__":
    main()
