"""Streams: the sequence of batches is a function of the seed, and every image has its own label."""

import io
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from looksam.trainer.data import BadImageError, Encoded, eval_batches, hold_out, load_dataset, train_batches
from looksam.trainer.data.reading import stream
from looksam.trainer.data.reading.parquet import ParquetRows

REAL = Path(os.environ.get("LOOKSAM_DATA") or Path(__file__).parents[4] / "shared/data") / "imagenette224-sample"
N, SIZE = 21, 8


def write_rows(path: Path, images: list[bytes], group: int = 4) -> ParquetRows:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"img": pa.array([{"bytes": data, "path": None} for data in images], kind)})
    pq.write_table(table, path, row_group_size=group)
    return ParquetRows([path], "img")


@pytest.fixture
def images() -> list[bytes]:
    """N images of one colour each, so that an image is known by its first pixel, whatever the crop."""
    buffers = [io.BytesIO() for _ in range(N)]
    for row, buffer in enumerate(buffers):
        Image.new("RGB", (10 + row % 3, 12), (row, 100, 200)).save(buffer, "PNG")
    return [buffer.getvalue() for buffer in buffers]


@pytest.fixture
def source(tmp_path: Path, images: list[bytes]) -> Encoded:
    return Encoded(write_rows(tmp_path / "train-0.parquet", images), np.arange(N, dtype=np.int32))


def same(ours: list[dict], theirs: list[dict]) -> None:
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def take(batches: Iterator[dict], count: int) -> list[dict]:
    got = list(islice(batches, count))
    batches.close()  # type: ignore[attr-defined]
    return got


def test_rows_are_read_by_place_and_pickled_without_open_files(tmp_path: Path, images: list[bytes]) -> None:
    write_rows(tmp_path / "a.parquet", images[:9])
    write_rows(tmp_path / "b.parquet", images[9:])
    rows = ParquetRows([tmp_path / "a.parquet", tmp_path / "b.parquet"], "img")
    assert [rows.read(row) for row in range(N)] == images
    again = pickle.loads(pickle.dumps(rows))
    assert len(pickle.dumps(rows)) < 2000  # paths and counts, no image
    assert [again.read(row) for row in (20, 0, 9)] == [images[20], images[0], images[9]]
    assert again.place(8).endswith("a.parquet row 8") and again.place(9).endswith("b.parquet row 0")
    np.testing.assert_array_equal(rows.blocks(), np.repeat(np.arange(6), [4, 4, 1, 4, 4, 4]))
    with pytest.raises(IndexError, match="row 21"):
        rows.read(N)


def test_train_stream_visits_each_image_once_an_epoch(source: Encoded) -> None:
    batches = take(train_batches(source, batch_size=7, seed=0, image_size=SIZE), 6)
    for epoch in (batches[:3], batches[3:]):
        np.testing.assert_array_equal(np.sort(np.concatenate([b["label"] for b in epoch])), np.arange(N))
    for batch in batches:
        assert batch["image"].shape == (7, SIZE, SIZE, 3) and batch["image"].dtype == np.uint8
        assert batch["label"].dtype == np.int32 and batch.keys() == {"image", "label"}
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["label"])  # the right image to each label
        assert (batch["image"][..., 1:] == [100, 200]).all()
    assert (batches[0]["label"] != batches[3]["label"]).any()
    other = take(train_batches(source, batch_size=7, seed=1, image_size=SIZE), 1)
    assert (batches[0]["label"] != other[0]["label"]).any()


def test_incomplete_last_batch_is_dropped_or_drawn_across(source: Encoded) -> None:
    dropped = take(train_batches(source, batch_size=8, seed=0, image_size=SIZE), 4)
    for epoch in (dropped[:2], dropped[2:]):
        assert len(set(np.concatenate([b["label"] for b in epoch]).tolist())) == 16
    across = take(train_batches(source, batch_size=6, seed=0, image_size=SIZE, across_epochs=True), 7)
    labels = np.concatenate([b["label"] for b in across])
    for epoch in (labels[:N], labels[N:]):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(N))
    whole = take(train_batches(source, batch_size=42, seed=0, image_size=SIZE, across_epochs=True), 1)
    np.testing.assert_array_equal(whole[0]["label"], labels)


@pytest.fixture
def photos(tmp_path: Path) -> Encoded:
    """Images on which every crop looks different."""
    rng = np.random.default_rng(5)
    buffers = [io.BytesIO() for _ in range(N)]
    for buffer in buffers:
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(buffer, "JPEG")
    rows = write_rows(tmp_path / "photos.parquet", [buffer.getvalue() for buffer in buffers])
    return Encoded(rows, np.arange(N, dtype=np.int32))


class JaxFreeRows(ParquetRows):
    """Rows that cannot be read in a worker process where a jax back end runs."""

    def read(self, row: int) -> bytes:
        bridge = sys.modules.get("jax._src.xla_bridge")
        if multiprocessing.parent_process() and bridge is not None and bridge.backends_are_initialized():
            raise AssertionError("a worker process has initialised jax")
        return super().read(row)


def test_stream_is_the_same_with_workers_and_from_any_step(tmp_path: Path, photos: Encoded) -> None:
    options = {"batch_size": 8, "seed": 3, "image_size": SIZE, "num_steps": 7}
    alone = list(train_batches(photos, **options))
    assert len(alone) == 7
    for start in (1, 2, 5):  # in the middle, at the end and in the last of the epochs of two batches
        same(list(train_batches(photos, start_step=start, **options)), alone[start:])
    watched = replace(photos, rows=JaxFreeRows([tmp_path / "photos.parquet"], "img"))
    same(list(train_batches(watched, workers=2, start_step=1, **options)), alone[1:])
    assert list(train_batches(photos, start_step=7, **options)) == []


def test_stream_does_not_depend_on_how_a_batch_is_cut_into_chunks(photos, monkeypatch) -> None:
    options = {"batch_size": 12, "seed": 3, "image_size": SIZE, "num_steps": 3}
    whole = list(train_batches(photos, **options)), list(eval_batches(photos, batch_size=12, image_size=SIZE))
    monkeypatch.setattr(stream, "_CHUNK", 5)
    monkeypatch.setattr(stream, "_SMALLEST_CHUNK", 2)
    assert stream._chunking(12, 0, 1, 0, 3).chunks_per_step == 3
    same(list(train_batches(photos, **options)), whole[0])
    same(list(eval_batches(photos, batch_size=12, image_size=SIZE)), whole[1])


def test_shards_in_order_are_the_global_batch(photos: Encoded) -> None:
    options = {"batch_size": 9, "seed": 3, "image_size": SIZE, "num_steps": 3}
    parts = [list(train_batches(photos, shard_index=i, shard_count=3, **options)) for i in range(3)]
    assert parts[0][0]["label"].shape == (3,)
    joined = [{name: np.concatenate([p[name] for p in step]) for name in step[0]} for step in zip(*parts, strict=True)]
    same(joined, list(train_batches(photos, **options)))
    evals = [list(eval_batches(photos, batch_size=8, image_size=SIZE, shard_index=i, shard_count=2)) for i in (0, 1)]
    joined = [{name: np.concatenate([p[name] for p in step]) for name in step[0]} for step in zip(*evals, strict=True)]
    same(joined, list(eval_batches(photos, batch_size=8, image_size=SIZE)))


def test_crops_differ_between_epochs_and_seeds(photos: Encoded) -> None:
    def by_label(seed: int, start: int) -> np.ndarray:
        batch = take(train_batches(photos, batch_size=N, seed=seed, start_step=start, image_size=SIZE), 1)[0]
        return batch["image"][np.argsort(batch["label"])]

    first = by_label(0, 0)
    assert (first != by_label(0, 1)).any(axis=(1, 2, 3)).all()
    assert (first != by_label(1, 0)).any(axis=(1, 2, 3)).all()


def test_eval_counts_every_image_once(source: Encoded) -> None:
    batches = list(eval_batches(source, batch_size=8, image_size=SIZE))
    assert [batch["image"].shape for batch in batches] == [(8, SIZE, SIZE, 3)] * 3
    labels, weight = (np.concatenate([batch[name] for batch in batches]) for name in ("label", "weight"))
    np.testing.assert_array_equal(labels[weight == 1], np.arange(N))
    np.testing.assert_array_equal(weight, [1] * N + [0] * 3)
    assert not batches[2]["image"][5:].any() and weight.dtype == np.float32


def test_a_subset_streams_its_own_rows_with_its_own_labels(source: Encoded) -> None:
    kept, held = hold_out(source.with_labels(np.arange(N) % 3), 6, seed=0)
    (got,) = eval_batches(held, batch_size=6, image_size=SIZE)
    np.testing.assert_array_equal(got["image"][:, 0, 0, 0] % 3, got["label"])
    np.testing.assert_array_equal(got["image"][:, 0, 0, 0], held.index)
    batch = take(train_batches(kept, batch_size=15, seed=0, image_size=SIZE), 1)[0]
    np.testing.assert_array_equal(np.sort(batch["image"][:, 0, 0, 0]), kept.index)
    assert set(kept.index) | set(held.index) == set(range(N)) and len(kept) == 15


# --- unreadable images


@pytest.fixture
def damaged(tmp_path: Path, images: list[bytes]) -> Encoded:
    rows = write_rows(tmp_path / "damaged.parquet", [*images[:4], images[4][:40], b"no image", *images[6:]])
    return Encoded(rows, np.arange(N, dtype=np.int32), "skip")


def test_skipped_image_is_replaced_by_the_next_readable(damaged: Encoded, source: Encoded, caplog) -> None:
    options = {"batch_size": 7, "seed": 0, "image_size": SIZE, "num_steps": 6}
    with caplog.at_level(logging.WARNING, "looksam.trainer.data"):
        got = list(train_batches(damaged, **options))
    for batch, sound in zip(got, train_batches(source, **options), strict=True):
        expected = np.where(np.isin(sound["label"], [4, 5]), 6, sound["label"])
        np.testing.assert_array_equal(batch["label"], expected)
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], expected)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and "(2 so far)" in lines[1]  # once an image, not once an epoch
    assert any("damaged.parquet row 4" in line for line in lines)


def test_skipped_image_has_no_weight_in_eval(damaged: Encoded) -> None:
    batches = list(eval_batches(damaged, batch_size=N, image_size=SIZE))
    np.testing.assert_array_equal(np.flatnonzero(batches[0]["weight"] == 0), [4, 5])


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_image_fails_with_its_place(damaged: Encoded, workers: int) -> None:
    failing = replace(damaged, on_bad_image="fail")
    with pytest.raises(BadImageError, match=r"damaged\.parquet row [45]: unreadable image .*--on-bad-image skip"):
        list(train_batches(failing, batch_size=N, seed=0, image_size=SIZE, num_steps=1, workers=workers))


# --- what is refused, and what is left behind


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": N + 1}, rf"batch_size={N + 1} is larger than the data \({N} images\)"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"image_size": 0}, "image_size=0"),
        ({"workers": -1}, "workers=-1"),
        ({"start_step": -1}, "start_step=-1"),
        ({"shard_count": 2}, "shard_count=2 does not divide batch_size=7"),
        ({"shard_index": 7, "shard_count": 7}, r"shard_index=7 is outside 0\.\.6"),
    ],
)
def test_train_batches_refuses_at_once(source: Encoded, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_batches(source, **{"batch_size": 7, "seed": 0, "image_size": SIZE, **change})


def test_importing_the_data_package_loads_nothing_heavy() -> None:
    heavy = "{'jax', 'grain', 'pyarrow', 'PIL', 'sklearn'}"
    command = [sys.executable, "-c", f"import sys, looksam.trainer.data; print(sorted({heavy} & set(sys.modules)))"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.run(command, capture_output=True, text=True, env=environment).stdout == "[]\n"


PROGRAM = """
import multiprocessing, sys, time
from pathlib import Path
import numpy as np
from looksam.trainer.data import Encoded, train_batches
from looksam.trainer.data.reading.parquet import ParquetRows
if __name__ == "__main__":
    rows = ParquetRows([Path(sys.argv[1])], "img")
    batches = train_batches(Encoded(rows, np.zeros(len(rows), np.int32)), batch_size=4, seed=0, image_size=8, workers=1)
    next(batches)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")
def test_workers_end_with_a_killed_main_process(tmp_path: Path, source: Encoded) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "train-0.parquet")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as main:
        assert main.stdout is not None
        workers = [int(pid) for pid in main.stdout.readline().split()]
        main.kill()
    assert workers
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in workers)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no {REAL.name} in {REAL.parent}; set LOOKSAM_DATA")
def test_real_photographs_stream() -> None:
    data = load_dataset("parquet", data_dir=REAL, max_decoded_bytes=0)
    assert (len(data.train), len(data.test), data.num_classes) == (600, 300, 10)
    batches = list(eval_batches(data.test, batch_size=128, image_size=64))
    weight = np.concatenate([batch["weight"] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches])
    np.testing.assert_array_equal(np.bincount(labels[weight == 1]), np.full(10, 30))
