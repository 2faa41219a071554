"""argparse, with short errors that suggest what was meant."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from looksam.arguments import close_names
from looksam.cli.errors import USAGE


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags, keeps the line breaks of its texts, and suggests the closest flag."""

    def __init__(self, **options: Any) -> None:
        keep_lines = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=keep_lines, **options)

    def error(self, message: str) -> NoReturn:
        """Without argparse's usage, which with a flag for every setting would bury the message."""
        self.exit(USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses the rest here, where the flags of the command are known, and not in the parser above it."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self._refuse(rest)
        return found, rest

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        flags = [word for word in words if word.startswith("-")]
        if not flags:
            self.error(f"{words[0]!r} is one argument too many")
        flag = flags[0].partition("=")[0]
        known = {name.lstrip("-"): name for name in self._option_string_actions if name.startswith("--")}
        close = " or ".join(known[name] for name in close_names(flag.lstrip("-"), known))
        self.error(f"there is no flag {flag}; {f'did you mean {close}?' if close else 'the help lists them all'}")
