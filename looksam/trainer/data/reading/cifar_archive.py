"""Downloads: to a temporary file, checked by SHA-256 before anyone reads it, then renamed in one step.

CIFAR-100 from the official binary archive, read as plain bytes: nothing is unpickled, nothing is extracted to disk.

Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import hashlib
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from looksam.trainer.data.reading.dataset import Dataset, Images, channel_moments
from looksam.trainer.data.reading.labels import check_labels

_CHUNK = 2**20
_TIMEOUT = 60  # seconds without a byte


def download(url: str, target: Path, sha256: str, max_bytes: int) -> None:
    """Fetches url to target. Whatever goes wrong, target is either absent or whole and checked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            found = _fetch(url, file, max_bytes)
            file.flush()
            os.fsync(file.fileno())
        if found != sha256:
            raise ValueError(
                f"{url}: the download has SHA-256 {found}, expected {sha256}; it was deleted. "
                "Try again; if it happens again, the file at this address is not the published one."
            )
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def check_digest(path: Path, sha256: str, fix: str) -> None:
    """Refuses a file whose SHA-256 is not the expected one. The file is left alone."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(f"{path} has SHA-256 {found}, expected {sha256}; nothing was read from it. {fix}")


def _fetch(url: str, file: IO[bytes], max_bytes: int) -> str:
    digest, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            while chunk := answer.read(_CHUNK):
                size += len(chunk)
                if size > max_bytes:
                    raise ValueError(f"{url}: more than the {max_bytes} bytes expected; nothing was kept.")
                digest.update(chunk)
                file.write(chunk)
    except (urllib.error.URLError, TimeoutError) as error:
        raise ConnectionError(
            f"{url}: download failed ({error}); nothing was kept. Check the connection and try again, "
            "or fetch the file by other means and put it in the data folder."
        ) from error
    return digest.hexdigest()


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
