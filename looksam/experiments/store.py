"""Finished cells on disk: a file for each recipe, in it one record for each seed. Whole files replace each other."""

import functools
import json
import pathlib
from typing import Any

from looksam.experiments.task import Task, settings

Record = dict[str, Any]


class Store:
    """``folder`` holds ``<key>.json``; nothing is ever computed twice."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._read = functools.cache(self._read_file)
        self.final: dict[Any, Any] = {}  # what others reckoned from records that are complete: it cannot change

    def get(self, task: Task) -> Record | None:
        return self._read(task.key)["runs"].get(str(task.recipe.seed))

    def __contains__(self, task: Task) -> bool:
        return self.get(task) is not None

    def add(self, task: Task, record: Record) -> None:
        found = self._read(task.key)
        found["recipe"] = settings(task.recipe)
        found["runs"][str(task.recipe.seed)] = record
        self.write(task.key, found)

    def measurement(self, name: str) -> Any:
        """What ``write`` stored under a name of its own; None where there is nothing."""
        path = self._path(name)
        return _parsed(path, "ratios") if path.exists() else None

    def write(self, name: str, value: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self._path(name).with_suffix(".partial")
        partial.write_text(json.dumps(value, indent=None, separators=(",", ":"), sort_keys=True) + "\n")
        partial.rename(self._path(name))

    def _path(self, name: str) -> pathlib.Path:
        return self.folder / f"{name}.json"

    def _read_file(self, key: str) -> dict[str, Any]:
        path = self._path(key)
        return _parsed(path, "runs") if path.exists() else {"runs": {}}


def _parsed(path: pathlib.Path, wanted: str) -> dict[str, Any]:
    """A file with what is wanted in it."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); delete it, and what it held is made again.") from error
    if not isinstance(found, dict) or not isinstance(found.get(wanted), dict):
        raise ValueError(f"{path} has no {wanted!r}; delete it, and what it held is made again.")
    return found
