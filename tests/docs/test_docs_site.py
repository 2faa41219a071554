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


class Loaded(html.parser.HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        if tag == "link" and names.get("rel") not in ("index", "search", "next", "prev", "author", "copyright"):
            self.found.append(names.get("href"))
        elif tag != "a":
            self.found += [names[key] for key in ("src", "srcset", "data", "poster") if names.get(key)]


def loaded(path: pathlib.Path) -> list[str]:
    if path.suffix == ".html":
        parser = Loaded()
        parser.feed(path.read_text())
        return parser.found
    return re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", path.read_text())


def test_nothing_is_loaded_from_elsewhere(site):
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 20
    for path in files:
        for target in loaded(path):
            if not target.startswith(("data:", "#")):
                local = (path.parent / target.partition("?")[0].partition("#")[0]).resolve()
                assert "//" not in target and local.is_file(), f"{path.name} loads {target}"


def test_every_page_is_built(site):
    for page in pages.documents():
        if page.startswith("docs/"):
            assert (site / pathlib.Path(page).relative_to("docs").with_suffix(".html")).exists()


def test_docstrings_are_in_the_reference(site):
    text = (site / "api/looksam.html").read_text()
    assert "Sharpness-Aware Minimization for Efficiently Improving Generalization" in text  # what SAM refers to
    assert "norm of the gradient that the optimizer gets" in text  # a field of StepInfo
    assert "Alias for field number" not in text and "[6.12 8.16]" in text
