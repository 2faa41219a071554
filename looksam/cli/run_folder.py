"""The folder of a run, as it is named on the command line."""

import pathlib

from looksam.arguments import did_you_mean
from looksam.cli.errors import UsageError


def run_folder(name: str) -> pathlib.Path:
    """The folder, or an error that names the did_you_mean one there is."""
    directory = pathlib.Path(name)
    if directory.is_dir():
        return directory
    folders = directory.parent.iterdir() if directory.parent.is_dir() else ()
    names = [folder.name for folder in folders if folder.is_dir()]
    raise UsageError(f"{name!r} is not a folder{did_you_mean(directory.name, names, 'pass the folder of a run')}")
