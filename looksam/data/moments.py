"""Mean and standard deviation of each channel, which models subtract and divide by."""

import numpy as np

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # the usual constants, for sets that are too large to measure
IMAGENET_STD = (0.229, 0.224, 0.225)

_IMAGES_AT_ONCE = 4096  # bincount makes its input eight times larger


def channel_moments(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of uint8 images (n, h, w, c) in [0, 1] units, exact: from counts of the 256 values.

    A channel that never varies gets std 1, so that dividing by it is harmless.
    """
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[-1]):
        share = _counts(images[..., channel]) / images[..., channel].size
        mean = share @ values
        means.append(float(mean))
        stds.append(float(np.sqrt(share @ (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)


def _counts(plane: np.ndarray) -> np.ndarray:
    starts = range(0, len(plane), _IMAGES_AT_ONCE)
    parts = [np.bincount(plane[i : i + _IMAGES_AT_ONCE].ravel(), minlength=256) for i in starts]
    return np.sum(parts, axis=0)
