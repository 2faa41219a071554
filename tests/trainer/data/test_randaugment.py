"""Each operation against Pillow or a NumPy warp written from its definition, then the drawing and composing of them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from PIL import Image, ImageEnhance, ImageOps

from looksam.trainer.data.transforms import randaugment
from looksam.trainer.data.transforms.randaugment import OPERATIONS, apply_operations, draw_operations, rand_augment

H, W = 40, 44  # enough pixels that equalize divides by more than 1
MAGNITUDES = (10, 6, 0.5)
ENHANCERS = {
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "brightness": ImageEnhance.Brightness,
    "sharpness": ImageEnhance.Sharpness,
}
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
TIE = 1e-3  # pixels; a fixed-point coefficient is off by up to 2**-17, times 84 rows and columns

forced = jax.jit(apply_operations, static_argnames="magnitude")
augmented = jax.jit(lambda key, images: rand_augment(key, images, operations=3))


def sample_images(channels: int) -> np.ndarray:
    """Noise, a dim ramp with a little noise, one value, and few values of which one fills most of the image."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (H, W, channels))
    ramp = 40 + 3 * np.arange(W)[None, :, None] + 7 * np.arange(channels) + rng.integers(0, 9, (H, W, channels))
    constant = np.full((H, W, channels), 77)
    few = np.where(rng.random((H, W, channels)) < 0.03, rng.choice([3, 250], (H, W, channels)), 90)
    return np.stack([noise, ramp, constant, few]).astype(np.uint8)


_results: dict[tuple[float, int], dict[tuple[str, int], np.ndarray]] = {}


def results(magnitude: float, channels: int) -> dict[tuple[str, int], np.ndarray]:
    """Every operation with both signs on the sample images, in one call of one program."""
    if (magnitude, channels) not in _results:
        images = sample_images(channels)
        cases = [(name, sign) for name in OPERATIONS for sign in (1, -1)]
        operation = np.repeat([OPERATIONS.index(name) for name, _ in cases], len(images)).astype(np.int32)
        sign = np.repeat([sign for _, sign in cases], len(images)).astype(np.int32)
        out = np.asarray(forced(np.tile(images, (len(cases), 1, 1, 1)), operation, sign, magnitude=magnitude))
        _results[magnitude, channels] = dict(zip(cases, out.reshape(len(cases), *images.shape), strict=True))
    return _results[magnitude, channels]


def pillow(image: np.ndarray, operation: object) -> np.ndarray:
    mode = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return np.asarray(operation(mode)).reshape(image.shape)  # type: ignore[operator]


def check_with_pillow(name: str, magnitude: float, channels: int, operation: object, tolerance: int = 0) -> None:
    for sign in (1, -1):  # which must not matter
        for image, got in zip(sample_images(channels), results(magnitude, channels)[name, sign], strict=True):
            difference = np.abs(got.astype(int) - pillow(image, operation))
            assert difference.max() <= tolerance, f"{name}, off by {difference.max()}"


@pytest.mark.parametrize(("magnitude", "channels"), [*((m, 3) for m in MAGNITUDES), (6, 1)])
class TestOperations:
    def test_tables(self, magnitude: float, channels: int) -> None:
        check_with_pillow("identity", magnitude, channels, lambda image: image)
        check_with_pillow("equalize", magnitude, channels, ImageOps.equalize)
        threshold = math.floor(magnitude / 10 * 256 + 1e-9)
        check_with_pillow("solarize", magnitude, channels, lambda image: ImageOps.solarize(image, threshold))
        bits = {10: 4, 6: 2, 0.5: 1}[magnitude]
        check_with_pillow("posterize", magnitude, channels, lambda image: ImageOps.posterize(image, bits))

    def test_autocontrast(self, magnitude: float, channels: int) -> None:
        # Pillow's quotient is in floating point and then cut: an integer that comes out just below itself loses 1.
        check_with_pillow("autocontrast", magnitude, channels, ImageOps.autocontrast, tolerance=1)
        for image, got in zip(sample_images(channels), results(magnitude, channels)["autocontrast", 1], strict=True):
            lo, hi = (f(image.astype(int), axis=(0, 1)) for f in (np.min, np.max))
            exact = np.where(hi > lo, 255 * (image - lo) // np.maximum(hi - lo, 1), image)
            np.testing.assert_array_equal(got, exact)

    @pytest.mark.parametrize("name", ENHANCERS)
    def test_enhancements(self, magnitude: float, channels: int, name: str) -> None:
        thousandths = {10: 1900, 6: 1180, 0.5: 190}[magnitude]
        # Pillow's sum is in float32 and then cut: an integer that comes out just below itself loses 1.
        check_with_pillow(
            name, magnitude, channels, lambda x: ENHANCERS[name](x).enhance(thousandths / 1000), tolerance=1
        )
        for image, got in zip(sample_images(channels), results(magnitude, channels)[name, 1], strict=True):
            start = pillow(image, lambda x: ENHANCERS[name](x).degenerate).astype(int)
            exact = (1000 * start + thousandths * (image - start)) // 1000
            np.testing.assert_array_equal(got, exact.clip(0, 255))

    @pytest.mark.parametrize("name", GEOMETRIC)
    @pytest.mark.parametrize("sign", [1, -1])
    def test_warps(self, magnitude: float, channels: int, name: str, sign: int) -> None:
        x, y = source_coordinates(name, sign * magnitude / 10)
        nearest = [
            (np.rint(x + dx).astype(int), np.rint(y + dy).astype(int)) for dx in (-TIE, TIE) for dy in (-TIE, TIE)
        ]
        ties = ~np.all([np.array(nearest[0]) == np.array(other) for other in nearest], axis=(0, 1))
        assert ties.mean() < 0.16  # elsewhere the four candidates are one
        for image, got in zip(sample_images(channels), results(magnitude, channels)[name, sign], strict=True):
            fits = [np.all(got == read(image, *candidate), axis=-1) for candidate in nearest]
            assert np.all(np.any(fits, axis=0))


def source_coordinates(name: str, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Where the operation reads each output pixel, (x, y) in float64."""
    y, x = np.mgrid[:H, :W].astype(float)
    if name == "rotate":  # every arrow from the centre, turned
        turned = ((x - (W - 1) / 2) + 1j * (y - (H - 1) / 2)) * np.exp(1j * np.pi / 6 * level)
        return turned.real + (W - 1) / 2, turned.imag + (H - 1) / 2
    return {
        "shear_x": (x + 0.3 * level * y, y),
        "shear_y": (x, y + 0.3 * level * x),
        "translate_x": (x + level * W / 2.24, y),
        "translate_y": (x, y + level * H / 2.24),
    }[name]


def read(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    inside = (x >= 0) & (x < W) & (y >= 0) & (y < H)
    return np.where(inside[..., None], image[y.clip(0, H - 1), x.clip(0, W - 1)], 128)


def test_magnitude_ten_is_the_customary_setting() -> None:
    """Read off ramps: 100 of 224 pixels, shear 0.3, 30 degrees; solarize from 256 on does nothing."""
    x = np.broadcast_to(np.arange(224, dtype=np.uint8)[None, :, None], (224, 224, 1))
    images = np.stack([x, x, x.transpose(1, 0, 2), x])
    operation = np.array([OPERATIONS.index(n) for n in ("translate_x", "shear_x", "rotate", "solarize")], np.int32)
    moved, sheared, turned, same = np.asarray(forced(images, operation, np.ones(4, np.int32), magnitude=10.0))[..., 0]
    assert moved[7, 20] == 120
    assert moved[7, 124] == 128  # grey: beyond the last column
    assert sheared[101, 20] == 20 + 30  # 30.3
    assert turned[112, 212] == round(111.5 + 0.5 * math.cos(math.pi / 6) + 100.5 * math.sin(math.pi / 6))
    np.testing.assert_array_equal(same, x[..., 0])


def test_images_too_small_to_smooth_stay_under_sharpness() -> None:
    images = np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)
    every = np.full(1, OPERATIONS.index("sharpness"), np.int32)
    np.testing.assert_array_equal(forced(images, every, np.ones_like(every)), images)


def test_histogram_counts() -> None:
    images = sample_images(3)
    counts = np.asarray(randaugment.histogram(jnp.asarray(images)))
    for i, c in np.ndindex(counts.shape[:2]):
        np.testing.assert_array_equal(counts[i, c], np.bincount(images[i, ..., c].ravel(), minlength=256))


def test_operations_and_signs_are_drawn_uniformly_and_independently() -> None:
    drawn, signs = (np.asarray(a) for a in draw_operations(jax.random.key(3), 20_000, 2))
    assert drawn.shape == signs.shape == (20_000, 2)
    pairs = np.bincount(drawn[:, 0] * 14 + drawn[:, 1], minlength=14 * 14)
    assert len(pairs) == 14 * 14
    assert scipy.stats.chisquare(pairs).pvalue > 1e-3
    cells = np.bincount(drawn[:, 0] * 4 + (signs[:, 0] + 1) + (signs[:, 1] + 1) // 2, minlength=14 * 4)
    assert scipy.stats.chisquare(cells).pvalue > 1e-3


def noise_batch() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (112, H, W, 3), dtype=np.uint8)


def test_rounds_are_the_drawn_operations_in_order() -> None:
    images, key = noise_batch(), jax.random.key(5)
    drawn, signs = draw_operations(key, len(images), 3)
    expected = images
    for i in range(3):
        expected = forced(expected, drawn[:, i], signs[:, i], magnitude=10.0)
    np.testing.assert_array_equal(augmented(key, images), expected)


def test_deterministic_by_key_and_independent_between_images() -> None:
    images = noise_batch()
    first = np.asarray(augmented(jax.random.key(0), images))
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, augmented(jax.random.key(0), images))
    assert not np.array_equal(first, augmented(jax.random.key(1), images))
    images[4] = 255 - images[4]
    changed = np.any(first != np.asarray(augmented(jax.random.key(0), images)), axis=(1, 2, 3))
    assert changed.tolist() == [i == 4 for i in range(112)]


def test_same_images_without_x64_and_strict_promotion() -> None:
    images = noise_batch()
    strict = np.asarray(augmented(jax.random.key(0), images))
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        np.testing.assert_array_equal(augmented(jax.random.key(0), images), strict)


def test_one_trace_per_shape() -> None:
    traces = []

    @jax.jit
    def step(key: jax.Array, images: jax.Array) -> jax.Array:
        traces.append(images.shape)
        return rand_augment(key, images, operations=1)

    for seed in range(3):
        step(jax.random.key(seed), np.zeros((2, 4, 4, 1), np.uint8))
    assert traces == [(2, 4, 4, 1)]


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "error", "message"),
    [
        ((4, 4, 3), "uint8", {}, ValueError, r"shape \(4, 4, 3\).*batch"),
        ((2, 4, 4, 3), "float32", {}, TypeError, "float32.*uint8"),
        ((2, 4, 4, 4), "uint8", {}, ValueError, "4 channels"),
        ((1, 2048, 2049, 1), "uint8", {}, ValueError, "2048x2049.*resize"),
        ((2, 4, 4, 3), "uint8", {"magnitude": -1}, ValueError, "magnitude=-1.*0 to 30"),
        ((2, 4, 4, 3), "uint8", {"magnitude": 30.5}, ValueError, "magnitude=30.5"),
        ((2, 4, 4, 3), "uint8", {"magnitude": math.nan}, ValueError, "magnitude=nan"),
        ((2, 4, 4, 3), "uint8", {"magnitude": "10"}, TypeError, "magnitude='10'"),
        ((2, 4, 4, 3), "uint8", {"operations": 0}, ValueError, "operations=0.*>= 1"),
        ((2, 4, 4, 3), "uint8", {"operations": 1.5}, TypeError, "operations=1.5"),
        ((2, 4, 4, 3), "uint8", {"operations": True}, TypeError, "operations=True"),
    ],
)
def test_bad_arguments_fail_when_traced(
    shape: tuple[int, ...], dtype: str, options: dict, error: type[Exception], message: str
) -> None:
    images = jax.ShapeDtypeStruct(shape, dtype)
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda images: rand_augment(jax.random.key(0), images, **options), images)


def test_a_traced_magnitude_is_refused() -> None:
    with pytest.raises(TypeError, match=r"magnitude.*static"):
        jax.eval_shape(lambda m: rand_augment(jax.random.key(0), jnp.zeros((1, 4, 4, 3), jnp.uint8), magnitude=m), 1.0)


def test_operations_of_another_batch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3,\).*each of 2 images"):
        apply_operations(jnp.zeros((2, 4, 4, 3), jnp.uint8), jnp.zeros(3, jnp.int32), jnp.ones(2, jnp.int32))
