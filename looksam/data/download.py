"""Downloads: to a temporary file, checked by SHA-256 before anyone reads it, then renamed in one step."""

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

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
