"""Finished parts of long work on disk, and the digests that tell whether they are still valid."""

import functools
import hashlib
import json
import pathlib
from typing import Any

import jax
import numpy as np

import looksam
from looksam.trainer.run_folder.run_directory import RunError, check_version, write_atomically

VERSION = 1  # of kept parts
AGAIN = "delete it, and its parts are measured again"


class KeptParts:
    """The finished parts of one analysis: ``DIGEST.json``, and ``DIGEST.npz`` with the state of a loop.

    The digest is of everything that the numbers depend on, besides the settings that the names of the parts have: other
    weights, other images or another version of the library have a file of their own. Files are replaced as a whole, and
    may be deleted at any time.
    """

    def __init__(self, folder: str | pathlib.Path, digest: str) -> None:
        self._numbers = pathlib.Path(folder) / f"{digest}.json"
        self._state = self._numbers.with_suffix(".npz")
        self.parts: dict[str, Any] = self._read() if self._numbers.exists() else {}

    def get(self, name: str) -> Any | None:
        """The numbers of a part; None if it is not finished."""
        return self.parts.get(name)

    def put(self, name: str, numbers: Any) -> None:
        """Stores the numbers of a finished part, and deletes the state of its loop."""
        self.parts[name] = numbers
        self._numbers.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._numbers, (json.dumps({"version": VERSION, "parts": self.parts}) + "\n").encode())
        self._state.unlink(missing_ok=True)

    def get_state(self, name: str) -> tuple[int, list[np.ndarray]] | None:
        """The steps and arrays that ``put_state`` stored last; None if they are not of this part."""
        if not self._state.exists():
            return None
        try:
            with np.load(self._state, allow_pickle=False) as stored:
                if str(stored["name"]) != name:
                    return None
                return int(stored["done"]), [stored[f"arr_{i}"] for i in range(len(stored.files) - 2)]
        except (ValueError, KeyError, OSError) as error:
            raise RunError(f"{self._state} is damaged ({error}); {AGAIN}.") from error

    def put_state(self, name: str, state: tuple[int, list[np.ndarray]]) -> None:
        """Stores the state of the loop of a part, in place of any other."""
        done, arrays = state
        partial = self._state.with_suffix(".partial.npz")
        partial.parent.mkdir(parents=True, exist_ok=True)
        np.savez(partial, *arrays, name=name, done=done)
        partial.replace(self._state)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._numbers.read_text())
        except ValueError as error:
            raise RunError(f"{self._numbers} is damaged: it is not JSON ({error}); {AGAIN}.") from error
        check_version(str(self._numbers), content.get("version"), VERSION, AGAIN)
        parts: dict[str, Any] = content["parts"]
        return parts


def digest_of(settings: Any, arrays: Any) -> str:
    """A name for results that follow from plain settings, a pytree of arrays, and the code that computes them."""
    digest = hashlib.sha256(json.dumps([source_digest(), jax.__version__, settings], sort_keys=True).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


@functools.cache
def source_digest() -> str:
    """A digest of this package: results of other code, or of code that was edited, are not taken for its own."""
    package = pathlib.Path(looksam.__file__).parent
    digest = hashlib.sha256(looksam.__version__.encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
