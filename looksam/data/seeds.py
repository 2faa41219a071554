"""Every random choice about data comes from here: a pure function of what it is for and of the numbers given."""

import operator
import zlib

import numpy as np


def generator(purpose: str, seed: int, *more: int) -> np.random.Generator:
    """A generator of its own for each (purpose, seed, ...), so that one seed serves order, noise, split and crops."""
    seed = operator.index(seed)
    if seed < 0:
        raise ValueError(f"seed={seed} is negative; pass an int >= 0.")
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed, *more])
