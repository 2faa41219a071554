"""Order, crops, label noise, the validation split, digits, moments: each against its definition."""

import io

import numpy as np
import pytest
from PIL import Image

from looksam.trainer.data import Images, batch_across_epochs, epoch_batches, hold_out, load_dataset, with_label_noise
from looksam.trainer.data.reading.dataset import channel_moments
from looksam.trainer.data.reading.decode import eval_crop, random_box, scaled, train_crop
from looksam.trainer.data.reading.order import ShuffledOrder


def opened(pixels: np.ndarray, kind: str = "PNG", **options) -> Image.Image:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return Image.open(io.BytesIO(buffer.getvalue()))


# --- order


def test_epoch_batches_visit_every_row_at_most_once_and_differ_by_epoch_and_seed() -> None:
    batches = epoch_batches(10, 3, seed=0, epoch=0)
    assert batches.shape == (3, 3) and batches.dtype == np.int32
    assert len(set(batches.ravel().tolist())) == 9 and set(batches.ravel().tolist()) <= set(range(10))
    np.testing.assert_array_equal(batches, epoch_batches(10, 3, seed=0, epoch=0))
    others = [epoch_batches(10, 3, seed=seed, epoch=epoch) for seed, epoch in ((0, 1), (1, 0), (1, 1))]
    assert all((batches != other).any() for other in others)
    # seed + epoch would make seed 0, epoch 1 the same as seed 1, epoch 0
    assert (others[0] != others[1]).any()


def test_batches_across_epochs_are_whole_epochs_one_after_the_other() -> None:
    sequence = np.concatenate([batch_across_epochs(5, 3, seed=2, step=step) for step in range(5)])
    for epoch in range(3):
        np.testing.assert_array_equal(sequence[5 * epoch : 5 * epoch + 5], epoch_batches(5, 5, 2, epoch)[0])
    big = batch_across_epochs(5, 15, seed=2, step=0)  # larger than the data
    np.testing.assert_array_equal(big, sequence)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 11, 0, 0), r"batch_size=11 is larger than the data \(10 images\).*across_epochs"),
        ((10, 0, 0, 0), "batch_size=0"),
        ((0, 1, 0, 0), "no images"),
        ((10, 5, -1, 0), "seed=-1"),
        ((10, 5, 0, -1), "epoch=-1"),
    ],
)
def test_order_refuses(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        epoch_batches(*arguments)


def test_windows_mix_rows_of_a_few_blocks_at_a_time() -> None:
    blocks = np.repeat(np.arange(6), 100)
    order = ShuffledOrder(600, 0, 600, blocks, window=2)
    epochs = [order.rows(np.arange(600 * epoch, 600 * epoch + 600)) for epoch in range(2)]
    for rows in epochs:
        np.testing.assert_array_equal(np.sort(rows), np.arange(600))
        for window in rows.reshape(3, 200):
            assert len(set(blocks[window])) == 2  # two whole blocks a window
            assert 30 < (blocks[window[:100]] == blocks[window[0]]).sum() < 70  # and well mixed: 50 ± 4
    assert (epochs[0] != epochs[1]).any()


# --- crops


def test_random_box_has_the_stated_area_and_ratio() -> None:
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(400, 300, rng) for _ in range(4000)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0 and boxes[:, 2].max() <= 400 and boxes[:, 3].max() <= 300
    area, ratio = w * h / 120_000, w / h
    assert 0.08 - 0.005 < area.min() < 0.09 and area.max() > 0.9
    assert 3 / 4 - 0.02 < ratio.min() < 0.77 and 1.3 < ratio.max() < 4 / 3 + 0.02
    small = area < 0.5  # these always fit: area uniform, log ratio symmetric about 0, place uniform
    assert abs(area[small].mean() - 0.29) < 0.01
    assert abs(np.log(ratio[small]).mean()) < 0.01
    place = boxes[small, 0] / (400 - w[small])
    assert abs(place.mean() - 0.5) < 0.02 and place.min() < 0.01 and place.max() > 0.99


@pytest.mark.parametrize(("width", "height", "box"), [(1000, 9, (494, 0, 506, 9)), (9, 1000, (0, 494, 9, 506))])
def test_random_box_of_a_strip_is_the_centre(width: int, height: int, box: tuple) -> None:
    # 8 % of the strip at ratio 3/4 is already higher than it is, so that all ten tries fail
    assert random_box(width, height, np.random.default_rng(0)) == box


def test_scaled_at_scale_one_is_the_slice() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    np.testing.assert_array_equal(scaled(opened(pixels), (5, 2, 13, 10), 8), pixels[2:10, 5:13])


def test_scaled_follows_a_linear_ramp() -> None:
    ramp = np.broadcast_to(np.arange(0, 240, dtype=np.uint8)[None, :, None], (240, 240, 3))
    centres = 40 + (np.arange(16) + 0.5) * 160 / 16 - 0.5  # of 16 output pixels over columns 40..200
    got = scaled(opened(ramp), (40, 40, 200, 200), 16)
    assert np.abs(got[:, 1:-1].astype(float) - centres[None, 1:-1, None]).max() <= 1


def test_a_jpeg_decoded_smaller_gives_the_same_crop() -> None:
    y, x = np.mgrid[:320, :480]
    smooth = np.stack([x * 255 / 480, y * 255 / 320, (x + y) * 255 / 800], -1).astype(np.uint8)
    jpeg, box = opened(smooth, "JPEG", quality=95), (100, 50, 400, 300)
    full = np.asarray(Image.fromarray(smooth).resize((32, 32), Image.Resampling.BILINEAR, box=box)).astype(int)
    assert np.abs(scaled(jpeg, box, 32) - full).max() <= 4
    assert jpeg.size == (120, 80)  # of 480 × 320: a quarter was enough, an eighth would not be


def test_train_crop_flips_half_of_the_time() -> None:
    ramp = np.broadcast_to(np.arange(0, 240, dtype=np.uint8)[None, :, None], (240, 240, 3))
    flips = [
        int(crop[0, 0, 0]) > int(crop[0, -1, 0])
        for crop in (train_crop(opened(ramp), 8, np.random.default_rng(seed)) for seed in range(200))
    ]
    assert 70 < sum(flips) < 130  # 100 ± 7


def test_eval_crop_is_resize_then_centre() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 100, 3), dtype=np.uint8)
    got = eval_crop(opened(pixels), 28)  # 28 · 256 / 224 = 32, so that 100 × 64 becomes 50 × 32
    resized = np.asarray(Image.fromarray(pixels).resize((50, 32), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(got, resized[2:30, 11:39])


# --- label noise and the validation split


def test_label_noise_draws_exactly_the_share_uniformly() -> None:
    labels = np.zeros(10_000, np.int32)
    noisy = with_label_noise(labels, 0.3, 10, seed=1)
    assert noisy.dtype == np.int32
    # starting from labels that no draw can give, what changed is what was drawn: each class 300 ± 16
    drawn = np.bincount(with_label_noise(np.full(10_000, 10), 0.3, 10, seed=1), minlength=11)
    assert drawn[10] == 7_000 and drawn[:10].min() > 220 and drawn[:10].max() < 380
    assert not labels.any()  # a copy
    np.testing.assert_array_equal(noisy, with_label_noise(labels, 0.3, 10, seed=1))
    assert (noisy != with_label_noise(labels, 0.3, 10, seed=2)).any()
    assert (with_label_noise(np.full(999, 10), 0.3, 10, seed=0) != 10).sum() == 300  # round(299.7)
    np.testing.assert_array_equal(with_label_noise(labels, 0.0, 10, seed=0), labels)
    with pytest.raises(ValueError, match=r"fraction=1\.5"):
        with_label_noise(labels, 1.5, 10, seed=0)
    with pytest.raises(ValueError, match="seed=-1 is negative"):
        with_label_noise(labels, 0.5, 10, seed=-1)


@pytest.mark.parametrize(("share", "count"), [(0.1, 10), (37, 37), (0.333, 33)])
def test_hold_out_is_stratified_and_loses_nothing(share: float, count: int) -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10]).astype(np.int32)
    images = Images(np.arange(100, dtype=np.uint8).reshape(100, 1, 1, 1), labels)
    kept, held = hold_out(images, share, seed=3)
    assert len(held) == count
    both = np.concatenate([kept.images.ravel(), held.images.ravel()])
    np.testing.assert_array_equal(np.sort(both), np.arange(100))
    np.testing.assert_array_equal(held.labels, labels[held.images.ravel()])
    assert np.abs(np.bincount(held.labels, minlength=3) - np.array([0.6, 0.3, 0.1]) * count).max() < 1
    np.testing.assert_array_equal(hold_out(images, share, seed=3)[1].images, held.images)
    assert (hold_out(images, share, seed=4)[1].images != held.images).any()


@pytest.mark.parametrize("share", [0, 100, 0.0, 1.0, 2.5, -1, 0.001])
def test_hold_out_refuses_nothing_or_all(share: float) -> None:
    images = Images(np.zeros((100, 1, 1, 1), np.uint8), np.zeros(100, np.int32))
    with pytest.raises(ValueError, match=f"share={share} "):
        hold_out(images, share, seed=0)


# --- digits, and what models subtract and divide by


def test_digits_are_scikit_learns_divided_600_to_1197() -> None:
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    data = load_dataset("digits")
    assert (len(data.train), len(data.test), data.num_classes, data.image_shape) == (600, 1197, 10, (8, 8, 1))
    assert data.train.images.dtype == np.uint8 and data.train.labels.dtype == np.int32
    ours = [
        (tuple((image // 15).ravel()), int(label))
        for part in (data.train, data.test)
        for image, label in zip(part.images, part.labels, strict=True)
    ]
    theirs = [(tuple(x.astype(int)), int(y)) for x, y in zip(sklearn.data, sklearn.target, strict=True)]
    assert sorted(ours) == sorted(theirs)  # nothing lost, doubled or changed
    share = np.bincount(data.train.labels) - np.bincount(sklearn.target) * 600 / 1797
    assert np.abs(share).max() < 1  # stratified
    inputs = (data.train.images / 255 - data.mean[0]) / data.std[0]
    np.testing.assert_allclose(inputs, (data.train.images // 15) / 16, rtol=1e-12)  # pixels in [0, 1]
    np.testing.assert_array_equal(load_dataset("digits").train.images, data.train.images)


def test_moments_match_numpy_and_a_flat_channel_has_std_one() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    images[..., 2] = 51
    mean, std = channel_moments(images)
    np.testing.assert_allclose(mean, (images / 255).mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std[:2], (images / 255).std(axis=(0, 1, 2))[:2], rtol=1e-12)
    assert (round(mean[2], 12), std[2]) == (0.2, 1.0)
