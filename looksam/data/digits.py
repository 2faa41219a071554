"""scikit-learn's handwritten digits: 1,797 real 8×8 images that ship inside the package. No download."""

import numpy as np

from looksam.data.dataset import Dataset, Images
from looksam.data.needs import require
from looksam.data.split import hold_out

TEST_COUNT = 1197  # leaves 600 to train on, few enough for generalisation to differ between methods
SPLIT_SEED = 0  # one fixed split, stratified by class, whatever the seed of the run
SCALE = 15  # pixels are 0..16; times 15 they are 0..240, and // 15 gives them back


def load_digits() -> Dataset:
    """600 training and 1,197 test images, (8, 8, 1), ten classes."""
    digits = require("sklearn.datasets").load_digits()
    pixels = (digits.images * SCALE).astype(np.uint8)[..., None]
    train, test = hold_out(Images(pixels, digits.target.astype(np.int32)), TEST_COUNT, SPLIT_SEED)
    # inputs are pixels in [0, 1], not standardised: at this size that trains as well, and the numbers stay comparable
    return Dataset("digits", train, test, 10, (8, 8, 1), mean=(0.0,), std=(16 * SCALE / 255,))
