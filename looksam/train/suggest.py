"""What a mistyped name may have meant."""

import difflib
from collections.abc import Iterable


def near(name: str, names: Iterable[str]) -> list[str]:
    """Up to three names like this one, the likest first."""
    return difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)


def nearest(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """``"; did you mean a or b?"``, or ``otherwise`` where none is near: by default all the names."""
    names = list(names)
    close = near(name, names)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are {', '.join(names)}" if otherwise is None else f"; {otherwise}"
