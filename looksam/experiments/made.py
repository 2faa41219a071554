"""What a result was made by: the commit of the code and the versions it ran with."""

import pathlib
import subprocess
from typing import Any

from looksam.experiments.compare.run import versions

PACKAGE = pathlib.Path(__file__).parent.parent


def made_by() -> dict[str, Any]:
    return {"commit": commit(), "versions": versions()}


def commit() -> str:
    """Of the checkout this package runs from, with ``+`` where its code differs; "installed" without one."""
    checkout = (PACKAGE.parent / ".git").exists()  # an installed package may lie inside of another project's
    found = _git("rev-parse", "--short=12", "HEAD") if checkout else None
    if found is None:
        return "installed"
    return found + ("+" if _git("status", "--porcelain", "--", str(PACKAGE)) else "")


def _git(*arguments: str) -> str | None:
    try:
        command = ["git", "--no-optional-locks", *arguments]  # reads, and leaves the index to whoever works there
        done = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
