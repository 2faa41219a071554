"""docs/analysis.md: its example runs, and it has all the names."""

import doctest
import pathlib

import pytest

from looksam import analysis

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs/analysis.md"


@pytest.mark.usefixtures("as_users_run_it")
def test_the_example_gives_what_it_says():
    failed, tried = doctest.testfile(str(DOCUMENT), module_relative=False, encoding="utf-8")
    assert (failed, tried) == (0, 11)


def test_names():
    assert analysis.__all__ == sorted(analysis.__all__)
    functions = [name for name in analysis.__all__ if name.islower() and name not in ("measure", "rademacher")]
    text = DOCUMENT.read_text()
    for name in functions:
        assert f"`{name}" in text, name
        assert getattr(analysis, name).__doc__
