"""The links of all documents, checked in the Markdown itself: pages, files, pictures and anchors exist."""

import os
import pathlib
import re
import urllib.parse

import pages
import pytest

import looksam

ROOT = pages.ROOT


def broken(page: str, target: str) -> str | None:
    """Returns what is wrong with a link, or None."""
    url = urllib.parse.urlsplit(target)
    if url.scheme or url.netloc:
        fine = url.scheme == "https" and "." in url.netloc
        return None if fine else "not an https address"
    path = os.path.normpath(ROOT / pathlib.Path(page).parent / url.path) if url.path else str(ROOT / page)
    if not pathlib.Path(path).exists():
        return "no such file"
    outside = path.endswith(".md") and not path.startswith(str(ROOT / "docs"))
    if page.startswith("docs/") and (outside or pathlib.Path(path).is_dir()):
        return "not on the site"
    if url.fragment and url.fragment not in pages.anchors(os.path.relpath(path, ROOT)):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", pages.documents())
def test_links(page):
    found = [(line, target, broken(page, target)) for line, target in pages.links(page)]
    assert [f"{page}:{line}: {target}: {problem}" for line, target, problem in found if problem] == []


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("training.md", None),
        ("training.md#data", None),
        ("../results/rho/rho.svg", None),
        ("#the-formulas", None),
        ("trainings.md", "no such file"),
        ("training.md#dates", "no such heading"),
        ("../results/rho/none.svg", "no such file"),
        ("../results", "not on the site"),
        ("../README.md", "not on the site"),
        ("http://example.org", "not an https address"),
    ],
)
def test_broken_links_are_found(target, problem):
    assert broken("docs/maths.md", target) == problem


def test_links_are_found_in_text_and_not_in_code():
    assert len(list(pages.links("docs/results.md"))) > 15
    assert "a, b](x)" not in pages.prose("docs/pytorch.md")


@pytest.mark.parametrize("page", pages.documents())
def test_scripts_and_targets_that_are_named_exist(page):
    text = (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()
    for script in re.findall(r"python ((?:tools|benchmarks|examples)/\w+\.py)", text):
        assert (ROOT / script).exists(), script
    for target in re.findall(r"`make (\w+)", text):
        assert f"\n{target}:" in makefile, target


def test_every_page_is_in_the_navigation():
    listed = set()
    for folder in ("", "api/"):
        for block in pages.blocks(f"docs/{folder}index.md", "{toctree}"):
            entries = [line for line in block.code.splitlines() if line and not line.startswith(":")]
            names = [entry.rpartition("<")[2].rstrip(">") for entry in entries]  # "name" or "Title <name>"
            listed |= {f"docs/{folder}{name}.md" for name in names}
    every = {page for page in pages.documents() if page.startswith("docs/")}
    assert every == listed | {"docs/index.md"}


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("looksam", "looksam"),
        ("rules", "looksam.rules"),
        ("torch", "looksam.torch"),
        ("analysis", "looksam.analysis"),
        ("trainer", "looksam.trainer"),
    ],
)
def test_every_public_name_is_in_the_reference(page, module):
    import importlib

    entries = "".join(block.code for block in pages.blocks(f"docs/api/{page}.md", "{eval-rst}"))
    names = re.findall(r"^\.\. auto\w+:: (\w+)", entries, re.MULTILINE)
    public = set(importlib.import_module(module).__all__)
    if module == "looksam.rules":
        public -= set(looksam.__all__)  # which are on the page of looksam
    assert len(names) == len(set(names)) and public <= set(names)
