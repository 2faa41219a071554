"""The folder that holds a run's checkpoints: how they come in, are checked, and leave.

A finished checkpoint is a folder named by its step, with a list of its files and their SHA-256. Every other name is on
its way in or out, so that a kill at any moment never leaves half a checkpoint under a finished one's name.
"""

import hashlib
import json
import pathlib
import shutil
import tempfile

FILES = "files.json"
UNFINISHED = ".unfinished"  # being written
DISCARDED = ".discarded"  # old ones, being deleted
DAMAGED = ".damaged"  # kept for whoever wants to look


class Folder:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path.absolute()

    def of(self, step: int) -> pathlib.Path:
        return self.path / str(step)

    def steps(self) -> list[int]:
        """Steps with a finished checkpoint, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(int(path.name) for path in self.path.iterdir() if path.name.isdecimal())

    def create(self) -> None:
        """Makes the folder and writes a byte into it. OSError where that cannot be done."""
        self.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.path) as probe:
            probe.write(b"x")
            probe.flush()

    def unfinished(self) -> list[str]:
        """The steps, as text, whose writing was cut short."""
        return sorted({path.name.partition(".")[0] for path in self._marked(UNFINISHED)})

    def unfinished_path(self, step: int) -> pathlib.Path:
        """Where the checkpoint of a step is written, until ``finish``."""
        return self.path / f"{step}{UNFINISHED}"

    def finish(self, step: int) -> None:
        """Lists the files that were written, and puts the checkpoint in its place, in one rename."""
        written = self.unfinished_path(step)
        (written / FILES).write_text(json.dumps(_digests(written), indent=1))
        written.rename(self.of(step))

    def check(self, step: int) -> None:
        """ValueError, with the name, where a file is not as it was written. Nothing is parsed before this."""
        listed = json.loads((self.of(step) / FILES).read_bytes())
        found = _digests(self.of(step))
        for name in listed:
            if name not in found:
                raise ValueError(f"its file {name} is missing")
            if found[name] != listed[name]:
                raise ValueError(f"its file {name} does not match its SHA-256")

    def clean_up(self) -> None:
        for path in self._marked(UNFINISHED) + self._marked(DISCARDED):
            shutil.rmtree(path, ignore_errors=True)

    def discard(self, step: int) -> None:
        self._move(step, DISCARDED)
        self.clean_up()

    def set_aside(self, step: int) -> None:
        """Frees the name of a damaged checkpoint for a good one of the same step."""
        self._move(step, DAMAGED)

    def _move(self, step: int, mark: str) -> None:
        source = self.of(step)
        target = source.with_name(source.name + mark)
        shutil.rmtree(target, ignore_errors=True)
        if source.exists():
            source.rename(target)

    def _marked(self, mark: str) -> list[pathlib.Path]:
        return [path for path in self.path.iterdir() if mark in path.name]


def _digests(directory: pathlib.Path) -> dict[str, str]:
    found = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
