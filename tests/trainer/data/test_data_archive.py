"""CIFAR-100 from its archive: exact pixels, a checked digest, and nothing but the expected members."""

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from looksam.trainer.data import load_dataset
from looksam.trainer.data.reading import cifar_archive
from looksam.trainer.data.reading.cifar_archive import download

RNG = np.random.default_rng(0)
MEMBERS = {"cifar-100-binary/train.bin": 3, "cifar-100-binary/test.bin": 2}


def pictures(count: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def records(images: np.ndarray, fine: list[int]) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    labels = np.array([[7, label] for label in fine], np.uint8)  # coarse, fine
    return np.concatenate([labels, planes], axis=1).tobytes()


def write_archive(path: Path, members: list[tuple[str, bytes]], link: tuple[str, str] | None = None) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            archive.addfile(info)


def test_archive_gives_exact_pixels_and_touches_nothing_else(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    train, test = pictures(3), pictures(2)
    members = [
        ("../evil", b"x"),
        (str(tmp_path / "absolute"), b"x"),
        ("cifar-100-binary/../../evil", b"x"),
        ("cifar-100-binary/train.bin", records(train, [0, 99, 5])),
        ("cifar-100-binary/fine_label_names.txt", "\n".join(f"name_{i}" for i in range(100)).encode()),
        ("cifar-100-binary/test.bin", records(test, [1, 2])),
    ]
    write_archive(inside / "a.tar.gz", members)
    got, names = cifar_archive.read_archive(inside / "a.tar.gz", MEMBERS)
    assert names == tuple(f"name_{i}" for i in range(100))
    np.testing.assert_array_equal(got["cifar-100-binary/train.bin"].images, train)
    np.testing.assert_array_equal(got["cifar-100-binary/train.bin"].labels, [0, 99, 5])
    np.testing.assert_array_equal(got["cifar-100-binary/test.bin"].images, test)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.tar.gz", "inside"]  # nothing was extracted


@pytest.mark.parametrize(
    ("train", "link", "message"),
    [
        (None, None, "no member cifar-100-binary/train.bin"),
        (b"short", None, f"has 5 bytes, expected {3 * 3074}"),
        (None, ("cifar-100-binary/train.bin", "/etc/passwd"), "not a plain file"),
        (records(np.zeros((3, 32, 32, 3), np.uint8), [0, 100, 0]), None, "train.bin record 1: label 100 is outside"),
    ],
)
def test_archive_with_a_bad_member_is_refused(tmp_path: Path, train, link, message: str) -> None:
    test = ("cifar-100-binary/test.bin", records(pictures(2), [1, 2]))
    members = [test] + ([("cifar-100-binary/train.bin", train)] if train else [])
    write_archive(tmp_path / "a.tar.gz", members, link)
    with pytest.raises(ValueError, match=message) as error:
        cifar_archive.read_archive(tmp_path / "a.tar.gz", MEMBERS)
    assert "a.tar.gz" in str(error.value) and "binary archive" in str(error.value)


def test_archive_with_a_member_twice_or_cut_short_is_refused(tmp_path: Path) -> None:
    member = ("cifar-100-binary/test.bin", records(pictures(2), [1, 2]))
    write_archive(tmp_path / "twice.tar.gz", [member, member])
    with pytest.raises(ValueError, match="is there twice"):
        cifar_archive.read_archive(tmp_path / "twice.tar.gz", {member[0]: 2})
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "twice.tar.gz").read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"cut\.tar\.gz is not a readable"):
        cifar_archive.read_archive(tmp_path / "cut.tar.gz", {member[0]: 2})


def test_archive_with_the_wrong_digest_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / cifar_archive.ARCHIVE
    path.write_bytes(b"not the archive")
    with pytest.raises(ValueError, match="nothing was read") as error:
        load_dataset("cifar100", data_dir=tmp_path)
    assert hashlib.sha256(b"not the archive").hexdigest() in str(error.value)
    assert cifar_archive.SHA256 in str(error.value)
    assert path.exists()  # the user's own file is left alone


def test_download_on_request_then_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = pictures(3), pictures(2)
    members = [
        ("cifar-100-binary/train.bin", records(train, [3, 4, 5])),
        ("cifar-100-binary/test.bin", records(test, [6, 7])),
    ]
    write_archive(tmp_path / "published", members)
    published = (tmp_path / "published").read_bytes()
    monkeypatch.setattr(cifar_archive, "URL", (tmp_path / "published").as_uri())
    monkeypatch.setattr(cifar_archive, "SHA256", hashlib.sha256(published).hexdigest())
    monkeypatch.setattr(cifar_archive, "_RECORDS", MEMBERS)
    with pytest.raises(FileNotFoundError, match="--download"):
        load_dataset("cifar100", data_dir=tmp_path)
    data = load_dataset("cifar100", data_dir=tmp_path / "new", download=True)
    np.testing.assert_array_equal(data.train.images, train)
    np.testing.assert_array_equal(data.test.labels, [6, 7])
    np.testing.assert_allclose(data.std, (train / 255).std(axis=(0, 1, 2)), rtol=1e-12)
    assert (data.num_classes, data.image_shape) == (100, (32, 32, 3))
    assert [p.name for p in (tmp_path / "new").iterdir()] == [cifar_archive.ARCHIVE]


def test_failed_downloads_leave_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    target, wrong = tmp_path / "folder" / "target", "0" * 64
    with pytest.raises(ValueError, match=f"has SHA-256 {hashlib.sha256(b'abc').hexdigest()}, expected {wrong}"):
        download(source.as_uri(), target, wrong, max_bytes=3)
    with pytest.raises(ValueError, match="more than the 2 bytes"):
        download(source.as_uri(), target, wrong, max_bytes=2)
    with pytest.raises(ConnectionError, match="nothing was kept"):
        download((tmp_path / "absent").as_uri(), target, wrong, max_bytes=3)
    assert list(target.parent.iterdir()) == []


def test_pickled_archive_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / cifar_archive.PICKLED_ARCHIVE).write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="is not read: it is pickled"):
        load_dataset("cifar100", data_dir=tmp_path)
