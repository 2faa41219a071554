"""Messages in the words of the command line: ``batch_size=5000`` becomes ``--batch-size 5000``.

The library speaks of settings by their Python names, which users of Python, TOML and JSON read as they are. A command
shows the same messages with its own flags, and only those that it has.

>>> spelled("rho=-1.0 is out of range; pass rho >= 0.", {"rho": "--rho"})
'--rho -1.0 is out of range; pass --rho >= 0.'
>>> spelled("pass data_dir=, or across_epochs.", {"data_dir": "--data-dir", "across_epochs": "--across-epochs"})
'pass --data-dir, or --across-epochs.'
"""

import argparse
import re
from collections.abc import Mapping

_BEFORE = r"(?<![\w./\\='\"-])"  # not in a path, a quoted word, or a flag
_VALUE = r"('[^']*'|\"[^\"]*\"|[^\s,;:()]*[^\s,;:().])?"
_COMPARED = r"(?= (?:<|>|<=|>=) )"


def flags_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The flags of a command, by the Python name of what they set."""
    return {action.dest: action.option_strings[0] for action in parser._actions if action.option_strings}


def spelled(message: str, flags: Mapping[str, str]) -> str:
    """Returns a message with flags in place of ``name=value``, ``name >= 0``, and names that are no English words."""
    if not flags:
        return message
    names = "|".join(sorted(map(re.escape, flags), key=len, reverse=True))
    message = re.sub(rf"{_BEFORE}({names})={_VALUE}", lambda m: _flag(flags[m[1]], m[2]), message)
    message = re.sub(rf"{_BEFORE}({names}){_COMPARED}", lambda m: flags[m[1]], message)
    words = [name for name in flags if "_" in name]
    if not words:
        return message
    alone = rf"{_BEFORE}({'|'.join(sorted(words, key=len, reverse=True))})(?![\w=/\\'\"-]|\.\w)"
    return re.sub(alone, lambda m: flags[m[1]], message)


def _flag(flag: str, value: str | None) -> str:
    if value in (None, "True"):
        return flag
    if value == "False":
        return f"--no-{flag.removeprefix('--')}"
    return f"{flag} {'none' if value == 'None' else value}"
