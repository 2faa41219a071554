"""The documentation site: built without a warning, and it loads nothing from elsewhere."""

import html.parser
import pathlib
import re
import subprocess
import sys

import pages
import pytest

pytest.importorskip("sphinx")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--fresh-env", "--quiet", "-d"]
    assert f"{' '.join(options)} build/doctrees docs build/site" in (pages.ROOT / "Makefile").read_text()
    command = [sys.executable, "-m", "sphinx", *options, folder / "doctrees", "docs", folder / "site"]
    built = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return folder / "site"


class Targets(html.parser.HTMLParser):
    """What a page links to, and what a browser fetches to show it."""

    def __init__(self):
        super().__init__()
        self.linked, self.loaded = [], []

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        if tag == "a" or names.get("rel") in ("index", "search", "next", "prev"):
            self.linked.append(names.get("href") or "#")
        elif tag == "link":
            self.loaded.append(names["href"])
        else:
            self.loaded += [names[key] for key in ("src", "srcset", "data", "poster") if names.get(key)]


def is_local(path, target):
    local = (path.parent / re.sub(r"[?#].*", "", target)).resolve()
    return "//" not in target and local.is_file()


def test_nothing_is_loaded_from_elsewhere(site):
    found = {path: re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", path.read_text()) for path in site.rglob("*.css")}
    for path in site.rglob("*.html"):
        parser = Targets()
        parser.feed(path.read_text())
        found[path] = parser.loaded
        for target in parser.linked:
            assert target.startswith(("#", "https://")) or is_local(path, target), f"{path.name} links to {target}"
    assert len(found) > 20
    for path, targets in found.items():
        for target in targets:
            assert target.startswith(("data:", "#")) or is_local(path, target), f"{path.name} loads {target}"


def test_every_page_is_built(site):
    for page in pages.documents():
        if page.startswith("docs/"):
            assert (site / pathlib.Path(page).relative_to("docs").with_suffix(".html")).exists()


def test_docstrings_are_in_the_reference(site):
    text = (site / "api/looksam.html").read_text()
    assert "Sharpness-Aware Minimization for Efficiently Improving Generalization" in text  # what SAM refers to
    assert "norm of the gradient that the optimizer gets" in text  # a field of StepInfo
    assert "Alias for field number" not in text and "[6.12 8.16]" in text
