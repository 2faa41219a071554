"""Fine-tuning with LookSAM: digits 0 to 4 first, then 5 to 9 from those weights: pip install 'looksam[train]'

python examples/train_fine_tune.py
"""

import pathlib
import tempfile

import numpy as np
import sklearn.datasets

from looksam.trainer import Recipe, run
from looksam.trainer.data import Dataset, Images


def digits(first: int, train_count: int) -> Dataset:
    """Five of the digits, from ``first`` on."""
    data = sklearn.datasets.load_digits()
    rows = np.random.default_rng(0).permutation(np.flatnonzero((data.target >= first) & (data.target < first + 5)))
    pixels, labels = (data.images[rows, :, :, None] * 15).astype(np.uint8), (data.target[rows] - first).astype(np.int32)
    train, test = (Images(pixels[part], labels[part]) for part in (slice(train_count), slice(400, None)))
    names = tuple(str(first + i) for i in range(5))
    return Dataset.from_images(f"digits from {first}", train, test, num_classes=5, class_names=names)


def low(request) -> Dataset:
    return digits(0, train_count=400)


def high(request) -> Dataset:
    return digits(5, train_count=200)


BEFORE = Recipe(
    dataset=f"{__file__}:low",
    model="mlp",
    batch_size=40,
    epochs=20,
    learning_rate=0.05,
    method="look_sam",
    rho=0.2,
    alpha=0.3,
)


def main() -> float:
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "low")
        run(BEFORE, source)
        # The head starts anew, as the classes are others; the first hidden layer stays as it is.
        after = BEFORE.replace(dataset=f"{__file__}:high", init_from=str(source), freeze="^hidden/0/", epochs=60)
        result = run(after, pathlib.Path(folder, "high"))
    print(f"digits 5 to 9, from 200 images: test accuracy {result['test_accuracy']:.1f} %")
    return result["test_accuracy"] / 100


if __name__ == "__main__":
    main()
