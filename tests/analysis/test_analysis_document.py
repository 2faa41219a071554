"""docs/analysis.md has all the names of the package."""

import pathlib

from looksam import analysis

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs/analysis.md"


def test_names():
    assert analysis.__all__ == sorted(analysis.__all__)
    functions = [name for name in analysis.__all__ if name.islower() and name not in ("measure", "rademacher")]
    text = DOCUMENT.read_text()
    for name in functions:
        assert f"`{name}" in text, name
        assert getattr(analysis, name).__doc__
