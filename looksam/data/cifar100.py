"""CIFAR-100 from the official binary archive, read as plain bytes: nothing is unpickled, nothing is extracted to disk.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import tarfile
import zlib
from pathlib import Path

import numpy as np

from looksam.data.dataset import Dataset, Images
from looksam.data.download import check_digest, download
from looksam.data.labels import check_labels
from looksam.data.moments import channel_moments

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
SHA256 = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
ARCHIVE = "cifar-100-binary.tar.gz"
PICKLED_ARCHIVE = "cifar-100-python.tar.gz"
SIZE = 168_513_733
CLASSES = 100

_RECORDS = {"cifar-100-binary/train.bin": 50_000, "cifar-100-binary/test.bin": 10_000}
_RECORD_BYTES = 2 + 3 * 32 * 32  # coarse label, fine label, then the red, green and blue planes


def load_cifar100_archive(folder: Path) -> Dataset:
    """CIFAR-100 with its fine labels, from the archive in this folder."""
    path = folder / ARCHIVE
    check_digest(path, SHA256, f"Move it away and download anew with download=True, or fetch it from {URL}")
    train, test = read_archive(path, _RECORDS).values()
    mean, std = channel_moments(train.images)
    return Dataset("cifar100", train, test, CLASSES, (32, 32, 3), mean, std)


def download_cifar100(folder: Path) -> None:
    """Puts the archive into the folder, its SHA-256 checked."""
    download(URL, folder / ARCHIVE, SHA256, max_bytes=SIZE)


def read_archive(path: Path, records: dict[str, int]) -> dict[str, Images]:
    """The named members, each with the number of records it must hold. All other members are passed over unread."""
    found: dict[str, Images] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if member.name not in records:
                    continue
                if member.name in found:
                    raise ValueError(f"{path}: {member.name} is there twice; {_REPLACE}")
                found[member.name] = _images(_member_bytes(archive, member, records[member.name], path), member, path)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .tar.gz ({error}); {_REPLACE}") from error
    for name in records:
        if name not in found:
            raise ValueError(f"{path} has no member {name}; {_REPLACE}")
    return {name: found[name] for name in records}


_REPLACE = f"replace it by the official binary archive, {URL} (the pickled Python archive is not supported)."


def _member_bytes(archive: tarfile.TarFile, member: tarfile.TarInfo, records: int, path: Path) -> bytes:
    expected = records * _RECORD_BYTES
    if not member.isreg():  # a link could lead anywhere
        raise ValueError(f"{path}: {member.name} is not a plain file; {_REPLACE}")
    if member.size != expected:
        raise ValueError(f"{path}: {member.name} has {member.size} bytes, expected {expected}; {_REPLACE}")
    file = archive.extractfile(member)
    assert file is not None  # of a plain file it never is
    return file.read()


def _images(data: bytes, member: tarfile.TarInfo, path: Path) -> Images:
    table = np.frombuffer(data, np.uint8).reshape(-1, _RECORD_BYTES)
    labels = check_labels(table[:, 1], CLASSES, lambda row: f"{path}: {member.name} record {row}", _REPLACE)
    planes = table[:, 2:].reshape(-1, 3, 32, 32)
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)
