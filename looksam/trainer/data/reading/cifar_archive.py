"""CIFAR-100 from the official binary archive: downloaded on request, its SHA-256 checked, read as plain bytes.

Nothing is unpickled, and nothing is extracted to disk.

Reference: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
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

from looksam.trainer.data.reading.dataset import Dataset, Images
from looksam.trainer.data.reading.labels import check_labels

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
SHA256 = "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
ARCHIVE = "cifar-100-binary.tar.gz"
PICKLED_ARCHIVE = "cifar-100-python.tar.gz"
SIZE = 168_513_733  # bytes
CLASSES = 100

_RECORDS = {"cifar-100-binary/train.bin": 50_000, "cifar-100-binary/test.bin": 10_000}
_NAMES = "cifar-100-binary/fine_label_names.txt"  # one per line
_MOST_NAMES_BYTES = 2**16
_RECORD_BYTES = 2 + 3 * 32 * 32  # coarse label, fine label, then the red, green and blue planes
_REPLACE = f"replace it by the official binary archive, {URL} (the pickled Python archive is not supported)."

_DOWNLOAD_BYTES = 2**20  # read at once
_TIMEOUT = 60  # seconds without a byte


def has_archive(folder: Path) -> bool:
    """Whether the folder has the archive."""
    return (folder / ARCHIVE).exists()


def not_found(folder: Path) -> FileNotFoundError:
    """Returns the error for a folder without CIFAR-100, which says how to get it."""
    has_pickled = (folder / PICKLED_ARCHIVE).exists()
    pickled = f" ({PICKLED_ARCHIVE} is there, and is not read: it is pickled)" if has_pickled else ""
    return FileNotFoundError(
        f"{folder} has neither {ARCHIVE} nor train-*.parquet{pickled}; "
        f"pass --download, or put the archive from {URL} there."
    )


def download_cifar100(folder: Path) -> None:
    """Downloads the archive into the folder and checks its SHA-256."""
    download(URL, folder / ARCHIVE, SHA256, max_bytes=SIZE)


def load_cifar100_archive(folder: Path) -> Dataset:
    """Loads CIFAR-100 with its fine labels from the archive in this folder."""
    path = folder / ARCHIVE
    check_digest(path, SHA256, f"Move it away and download it again with --download, or get it from {URL}")
    sets, names = read_archive(path, _RECORDS)
    train, test = sets.values()
    return Dataset.from_images("cifar100", train, test, CLASSES, class_names=names)


def read_archive(path: Path, records: dict[str, int]) -> tuple[dict[str, Images], tuple[str, ...]]:
    """Reads the named members, each with the number of records it must hold, and the names of the classes.

    All other members are ignored. Without a list of 100 names, the names are ().
    """
    sets: dict[str, Images] = {}
    names: tuple[str, ...] = ()
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if member.name == _NAMES:
                    names = _class_names(archive, member)
                if member.name not in records:
                    continue
                if member.name in sets:
                    raise ValueError(f"{path}: {member.name} is there twice; {_REPLACE}")
                sets[member.name] = _images(_member_bytes(archive, member, records[member.name], path), member, path)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .tar.gz ({error}); {_REPLACE}") from error
    for name in records:
        if name not in sets:
            raise ValueError(f"{path} has no member {name}; {_REPLACE}")
    return {name: sets[name] for name in records}, names


def _class_names(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[str, ...]:
    file = archive.extractfile(member) if member.isreg() and member.size <= _MOST_NAMES_BYTES else None
    names = tuple(file.read().decode(errors="replace").split()) if file else ()
    return names if len(names) == CLASSES else ()


def _member_bytes(archive: tarfile.TarFile, member: tarfile.TarInfo, records: int, path: Path) -> bytes:
    expected = records * _RECORD_BYTES
    if not member.isreg():  # a link could point anywhere
        raise ValueError(f"{path}: {member.name} is not a plain file; {_REPLACE}")
    if member.size != expected:
        raise ValueError(f"{path}: {member.name} has {member.size} bytes, expected {expected}; {_REPLACE}")
    file = archive.extractfile(member)
    assert file is not None  # it never is for a plain file
    return file.read()


def _images(data: bytes, member: tarfile.TarInfo, path: Path) -> Images:
    table = np.frombuffer(data, np.uint8).reshape(-1, _RECORD_BYTES)
    labels = check_labels(table[:, 1], CLASSES, lambda row: f"{path}: {member.name} record {row}", _REPLACE)
    planes = table[:, 2:].reshape(-1, 3, 32, 32)
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)


def download(url: str, target: Path, sha256: str, max_bytes: int) -> None:
    """Downloads a file whose SHA-256 is known; whatever goes wrong, ``target`` is either absent or complete.

    The bytes go to a temporary file, which is renamed in one step once its SHA-256 is checked.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            digest = _fetch(url, file, max_bytes)
            file.flush()
            os.fsync(file.fileno())
        if digest != sha256:
            raise ValueError(
                f"{url}: the download has SHA-256 {digest}, expected {sha256}; it was deleted. "
                "Try again; if it happens again, the file at this address is not the published one."
            )
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _fetch(url: str, file: IO[bytes], max_bytes: int) -> str:
    digest, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            while chunk := answer.read(_DOWNLOAD_BYTES):
                size += len(chunk)
                if size > max_bytes:
                    raise ValueError(f"{url}: more than the {max_bytes} bytes expected; nothing was kept.")
                digest.update(chunk)
                file.write(chunk)
    except (urllib.error.URLError, TimeoutError) as error:
        raise ConnectionError(
            f"{url}: download failed ({error}); nothing was kept. Check the connection and try again, "
            "or get the file by other means and put it in the data folder."
        ) from error
    return digest.hexdigest()


def check_digest(path: Path, sha256: str, fix: str) -> None:
    """Raises if the file's SHA-256 is not the expected one; the file is left as it is."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise ValueError(f"{path} has SHA-256 {digest}, expected {sha256}; nothing was read from it. {fix}")
