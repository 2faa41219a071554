"""Crop + flip, normalise, smoothed labels and Mixup against NumPy, and the laws of what they draw."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from looksam.trainer.data.transforms.augment import mixup, normalize, one_hot_smoothed, random_crop_flip
from looksam.trainer.data.transforms.randaugment import rand_augment
from looksam.trainer.keys import per_image

SIZE, PADDING = 12, 4
crop_flip = jax.jit(random_crop_flip, static_argnames="padding")


def positions(count: int) -> np.ndarray:
    """Images whose pixels say where they are: (row + 1, column + 1, number of the image), never black."""
    row, column = np.mgrid[1 : SIZE + 1, 1 : SIZE + 1]
    images = np.broadcast_to(np.stack([row, column, column], axis=-1), (count, SIZE, SIZE, 3)).astype(np.uint8)
    images[..., 2] = 1 + np.arange(count)[:, None, None] % 255
    return images


def drawn_window(image: np.ndarray) -> tuple[int, int, bool]:
    """Row offset, column offset and flip, read off the middle of an augmented ``positions`` image."""
    middle = SIZE // 2
    flipped = int(image[middle, middle, 1]) < int(image[middle, middle - 1, 1])
    column = SIZE - 1 - middle if flipped else middle
    return (
        int(image[middle, middle, 0]) - 1 - middle + PADDING,
        int(image[middle, middle, 1]) - 1 - column + PADDING,
        flipped,
    )


def test_crops_are_slices_at_uniform_offsets_half_of_them_flipped() -> None:
    images = positions(4000)
    out = np.asarray(crop_flip(jax.random.key(0), images))
    assert out.dtype == np.uint8
    padded = np.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)))
    counts = np.zeros((2 * PADDING + 1, 2 * PADDING + 1, 2), int)
    for source, image in zip(padded, out, strict=True):
        top, left, flipped = drawn_window(image)
        window = source[top : top + SIZE, left : left + SIZE]
        np.testing.assert_array_equal(image, window[:, ::-1] if flipped else window)
        counts[top, left, int(flipped)] += 1
    assert scipy.stats.chisquare(counts.ravel()).pvalue > 1e-3  # offsets and flip, jointly
    assert abs(counts[..., 1].sum() - 2000) < 3.3 * math.sqrt(1000)


def test_crop_draws_the_same_for_any_dtype_and_mode() -> None:
    images = positions(8)
    expected = np.asarray(crop_flip(jax.random.key(2), images))
    for dtype in (jnp.float32, jnp.bfloat16):
        out = crop_flip(jax.random.key(2), jnp.asarray(images, dtype))
        assert out.dtype == dtype
        np.testing.assert_array_equal(np.asarray(out, np.float32), expected)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        np.testing.assert_array_equal(crop_flip(jax.random.key(2), images), expected)
    assert not np.array_equal(crop_flip(jax.random.key(3), images), expected)


def test_no_padding_only_flips() -> None:
    images = positions(8)
    out = np.asarray(crop_flip(jax.random.key(0), images, padding=0))
    flipped = [np.array_equal(a, b[:, ::-1]) for a, b in zip(out, images, strict=True)]
    kept = [np.array_equal(a, b) for a, b in zip(out, images, strict=True)]
    assert [a != b for a, b in zip(flipped, kept, strict=True)] == [True] * 8
    assert any(flipped)
    assert any(kept)


def test_normalize_is_its_formula() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    expected = (images / 255 - np.array(mean)) / np.array(std)
    out = jax.jit(lambda x: normalize(x, mean, std))(images)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)
    traced = jax.jit(normalize, static_argnames="dtype")(images, jnp.array(mean), jnp.array(std), dtype=jnp.bfloat16)
    assert traced.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(traced, np.float64), expected, rtol=2**-8, atol=1e-6)
    np.testing.assert_allclose(
        normalize(jnp.asarray(images[..., :1]), 0.5, 0.25), (images[..., :1] / 255 - 0.5) * 4, atol=1e-6
    )


def test_smoothed_targets() -> None:
    labels = np.array([3, 0, 4], np.uint8)
    targets = np.asarray(one_hot_smoothed(jnp.asarray(labels), 5, 0.1))
    assert targets.dtype == np.float32
    np.testing.assert_allclose(targets, 0.9 * np.eye(5)[labels] + 0.1 / 5, rtol=1e-7)
    np.testing.assert_allclose(targets.sum(-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(one_hot_smoothed(jnp.asarray(labels), 5), np.eye(5)[labels])
    assert one_hot_smoothed(jnp.array([299]), 300)[0, 299] == 1


def mixup_batch(count: int) -> tuple[np.ndarray, np.ndarray]:
    images = np.random.default_rng(0).normal(size=(count, 2, 3, 1)).astype(np.float32)
    return images, np.eye(count, dtype=np.float32)


def test_mixup_weights_follow_the_beta_law() -> None:
    alpha = 0.2
    images, targets = mixup_batch(2)
    keys = jax.random.split(jax.random.key(0), 2000)
    mixed = jax.jit(jax.vmap(lambda key: mixup(key, images, targets, alpha)[1]))(keys)
    assert scipy.stats.kstest(np.asarray(mixed)[:, 0, 0], "beta", args=(alpha, alpha)).pvalue > 1e-3


def test_mixup_mixes_neighbours_by_one_weight() -> None:
    images, targets = mixup_batch(5)  # the last one has no partner
    mixed_images, mixed_targets = jax.jit(mixup, static_argnums=3)(jax.random.key(1), images, targets, 0.4)
    assert mixed_images.dtype == mixed_targets.dtype == jnp.float32
    weight = float(mixed_targets[0, 0])
    assert 0.02 < weight < 0.98
    for got, x in ((mixed_images, images), (mixed_targets, targets)):
        partner = x[[1, 0, 3, 2, 4]]
        np.testing.assert_allclose(got, weight * x + (1 - weight) * partner, rtol=0, atol=1e-6)


def test_a_part_of_a_batch_is_augmented_as_in_the_whole() -> None:
    """What an image gets depends on the key and on its place in the global batch, not on the part it is worked in."""
    key, images = jax.random.key(4), jnp.asarray(positions(8))

    @jax.jit
    def augmented(keys: jax.Array, part: jax.Array) -> jax.Array:
        return rand_augment(keys, random_crop_flip(keys, part), operations=1)

    whole = np.asarray(augmented(key, images))
    halves = [augmented(per_image(key, 4, start), images[start : start + 4]) for start in (0, 4)]
    np.testing.assert_array_equal(np.concatenate(halves), whole)
    assert len({image.tobytes() for image in whole}) == 8


def test_mixup_with_alpha_zero_changes_nothing() -> None:
    images, targets = map(jnp.asarray, mixup_batch(4))
    mixed_images, mixed_targets = mixup(jax.random.key(0), images, targets, 0)
    np.testing.assert_array_equal(mixed_images, images)
    np.testing.assert_array_equal(mixed_targets, targets)


def test_mixup_keeps_low_precision() -> None:
    images = jax.ShapeDtypeStruct((4, 2, 3, 1), jnp.bfloat16)
    targets = jax.ShapeDtypeStruct((4, 10), jnp.float32)
    assert jax.eval_shape(lambda x, y: mixup(jax.random.key(0), x, y, 0.4), images, targets) == (images, targets)


def test_sharded_batches_are_augmented_alike() -> None:
    """The same pixels, partners and weight with the batch over all devices, and no device sees the whole batch."""

    def augment(key: jax.Array, images: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        key_crop, key_mix = jax.random.split(key)
        return mixup(key_mix, normalize(random_crop_flip(key_crop, images), 0.5, 0.25), targets, 0.4)

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    split, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    count = 2 * jax.device_count()
    batch = (jax.random.key(0), positions(count), np.eye(count, dtype=np.float32))
    program = jax.jit(augment, in_shardings=(whole, split, split), out_shardings=(split, split)).lower(*batch).compile()
    assert not any(moving in program.as_text() for moving in ("all-gather", "collective-permute", "all-to-all"))
    placed = [jax.device_put(x, sharding) for x, sharding in zip(batch, (whole, split, split), strict=True)]
    for sharded, single in zip(program(*placed), jax.jit(augment)(*batch), strict=True):
        np.testing.assert_allclose(sharded, single, rtol=0, atol=1e-6)  # a fused multiply-add, or not


def test_one_trace_per_shape() -> None:
    traces = []

    @jax.jit
    def step(key: jax.Array, images: jax.Array, labels: jax.Array) -> Any:
        traces.append(images.shape)
        x = normalize(random_crop_flip(key, images), 0.5, 0.5)
        return mixup(key, x, one_hot_smoothed(labels, 10, 0.1), 0.2)

    for seed in range(3):
        step(jax.random.key(seed), positions(4), np.arange(4))
    assert traces == [(4, SIZE, SIZE, 3)]


KEY = jax.random.key(0)
BYTES = jnp.zeros((2, 4, 4, 3), jnp.uint8)
FLOATS = jnp.zeros((2, 4, 4, 3), jnp.float32)
TARGETS = jnp.zeros((2, 10), jnp.float32)
LABELS = jnp.zeros(2, jnp.int32)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        (random_crop_flip, (KEY, BYTES[0]), ValueError, r"shape \(4, 4, 3\).*batch"),
        (random_crop_flip, (KEY, BYTES.astype(jnp.int32)), TypeError, "int32.*uint8 or floating"),
        (normalize, (FLOATS, 0.5, 0.5), TypeError, "float32.*uint8"),
        (normalize, (BYTES, (0.5, 0.5), 0.5), ValueError, r"mean has shape \(2,\).*3 channels"),
        (normalize, (BYTES, 0.5, (1.0, 0.0, 1.0)), ValueError, r"std=\(1.0, 0.0, 1.0\).*> 0"),
        (one_hot_smoothed, (TARGETS, 10), TypeError, "float32.*integer"),
        (one_hot_smoothed, (LABELS, 0), ValueError, "num_classes=0"),
        (one_hot_smoothed, (LABELS, 10, 1.0), ValueError, "smoothing=1.0.*< 1"),
        (one_hot_smoothed, (LABELS, 10, -0.1), ValueError, "smoothing=-0.1"),
        (one_hot_smoothed, (LABELS, 10, "0.1"), TypeError, "smoothing='0.1'"),
        (mixup, (KEY, BYTES, TARGETS, 0.2), TypeError, "uint8.*floating"),
        (mixup, (KEY, FLOATS[0], TARGETS, 0.2), ValueError, r"shape \(4, 4, 3\)"),
        (mixup, (KEY, FLOATS, TARGETS[:1], 0.2), ValueError, r"\(1, 10\).*\(2, classes\)"),
        (mixup, (KEY, FLOATS, LABELS, 0.2), ValueError, "int32.*one_hot_smoothed"),
        (mixup, (KEY, FLOATS, TARGETS, -0.2), ValueError, "alpha=-0.2.*>= 0"),
        (mixup, (KEY, FLOATS, TARGETS, math.inf), ValueError, "alpha=inf"),
        (mixup, (KEY, FLOATS, TARGETS, jnp.float32(0.2)), TypeError, "alpha=.*static"),
    ],
)
def test_bad_arguments(function: Any, arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        function(*arguments)


@pytest.mark.parametrize(("padding", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_bad_padding_fails_when_traced(padding: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"padding={padding}"):
        jax.eval_shape(lambda images: random_crop_flip(KEY, images, padding=padding), BYTES)
