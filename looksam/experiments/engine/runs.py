"""A run, the key it is stored by, and the folder of finished runs.

``results/runs`` has one file per recipe, with one record per seed:

    {"version": 2, "kind": "train", "recipe": {"method": "sam", ...}, "runs": {"0": {"test_accuracy": ..., ...}, ...}}

``recipe`` holds the settings that differ from their defaults, and the name of the file is their digest, so that a new
setting of ``Recipe`` leaves all stored runs valid. A default that changes does not: it needs a new VERSION.
"""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import platform
import subprocess
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
import optax

import looksam
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import write_atomically

VERSION = 2  # of stored files; 1 had no version and the digest of all settings
DIGITS = 5  # significant digits of stored numbers
PACKAGE = pathlib.Path(looksam.__file__).parent

Kind = Literal["train", "tune", "drift", "compare", "select"]
Record = dict[str, Any]

# Where data lies and how often something is written changes no number; seeds share a file.
NOT_IN_KEY = (
    *("seed", "data_dir", "download", "workers", "on_bad_image", "mesh"),
    *("eval_every", "log_every", "checkpoint_every", "keep_checkpoints", "max_minutes", "tensorboard", "wandb"),
)
_DEFAULTS = vars(Recipe())


@dataclass(frozen=True)
class Run:
    """One training run: a recipe with its seed, and what is measured.

    ``train`` reads the test set once, at the end; ``tune`` reads only the held-out images; ``drift`` compares the parts
    of SAM's gradient over time. ``compare`` and ``select`` are those of ``looksam compare`` and its ``--tune``.
    """

    kind: Kind
    recipe: Recipe

    @functools.cached_property
    def key(self) -> str:
        """The name of the stored file, the same for all seeds of a recipe."""
        text = json.dumps(changed_settings(self.recipe), sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def with_data(self, data_dir: str | None, download: bool) -> "Run":
        """The same run, with its data read from ``data_dir``."""
        return dataclasses.replace(self, recipe=self.recipe.replace(data_dir=data_dir, download=download))


def changed_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that determine a run's numbers and differ from their defaults, without the seed."""
    return {name: value for name, value in vars(recipe).items() if name not in NOT_IN_KEY and value != _DEFAULTS[name]}


class Store:
    """The finished runs and measurements in ``folder``. Files are replaced as a whole."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._read = functools.cache(self._read_runs)
        self.derived: dict[Any, Any] = {}  # cached by others: what follows from complete records, and cannot change

    def get(self, run: Run) -> Record | None:
        """The record of a run, None if it is not finished."""
        return self._read(run.key)["runs"].get(str(run.recipe.seed))

    def __contains__(self, run: Run) -> bool:
        return self.get(run) is not None

    def add(self, run: Run, record: Record) -> None:
        """Stores the record of a finished run."""
        content = self._read(run.key)
        content |= {"kind": run.kind, "recipe": changed_settings(run.recipe)}
        content["runs"][str(run.recipe.seed)] = record
        self.write(run.key, content)

    def measurement(self, name: str) -> dict[str, Any] | None:
        """The measurement that ``write`` stored under this name, None if there is none."""
        path = self._path(name)
        return read_versioned(path, "ratios") if path.exists() else None

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Stores ``content`` with the version of the format."""
        self.folder.mkdir(parents=True, exist_ok=True)
        versioned = {"version": VERSION} | content
        text = json.dumps(versioned, indent=None, separators=(",", ":"), sort_keys=True) + "\n"
        write_atomically(self._path(name), text.encode())

    def _path(self, name: str) -> pathlib.Path:
        return self.folder / f"{name}.json"

    def _read_runs(self, key: str) -> dict[str, Any]:
        path = self._path(key)
        return read_versioned(path, "runs") if path.exists() else {"runs": {}}


def read_versioned(path: pathlib.Path, expected: str) -> dict[str, Any]:
    """The content of a stored file, without its version. Raises ValueError for a damaged file or another version.

    ``expected`` is a key whose value is an object. Files of version 1 do not name their version.
    """
    again = "delete it, and its content is computed again"
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {again}.") from error
    content = content if isinstance(content, dict) else {}
    complete = isinstance(content.get(expected), dict)
    version = content.pop("version", 1 if complete else VERSION)
    if version != VERSION:
        older = isinstance(version, int) and version < VERSION
        fix = f"{again}, or read it with an older looksam" if older else "install a newer looksam"
        raise ValueError(f"{path} has format version {version}, and this looksam reads version {VERSION}; {fix}.")
    if not complete:
        raise ValueError(f"{path} has no {expected!r}; {again}.")
    return content


def plain(value: Any) -> Any:
    """A number or array for JSON: floats of a few digits, None for what is not finite."""
    if np.ndim(value):
        return [plain(part) for part in value]
    return float(f"{float(value):.{DIGITS}g}") if math.isfinite(value) else None


def provenance() -> dict[str, Any]:
    """What a result was computed by: the commit of the code and the versions of its libraries."""
    return {"commit": commit(), "versions": versions()}


def versions() -> dict[str, str]:
    """The versions of what decides the numbers."""
    python = platform.python_version()
    return {"looksam": looksam.__version__, "jax": jax.__version__, "optax": optax.__version__, "python": python}


def commit() -> str:
    """The commit of this checkout, with ``+`` where its code differs; "installed" for a package without one."""
    is_checkout = (PACKAGE.parent / ".git").exists()  # an installed package may lie inside another project's checkout
    head = _git("rev-parse", "--short=12", "HEAD") if is_checkout else None
    if head is None:
        return "installed"
    return head + ("+" if _git("status", "--porcelain", "--", str(PACKAGE)) else "")


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "--no-optional-locks", *arguments]  # only reads: the index may be in use
        result = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
