"""The code blocks of a page in docs/, which tests run as printed."""

import pathlib
import re

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def text(page):
    return (DOCS / page).read_text()


def headings(page):
    """The sections of a page that have code."""
    return [heading for heading in re.findall(r"^## (.*)$", text(page), re.MULTILINE) if blocks(page, heading)]


def blocks(page, heading):
    """The Python blocks of a section."""
    sections = rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)"
    (section,) = re.findall(sections, text(page), re.MULTILINE | re.DOTALL)
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def run(code, page, space):
    """Executes a block in the names of ``space``, and returns them with those that it defined."""
    exec(compile(code, f"docs/{page}", "exec"), space)
    return space
