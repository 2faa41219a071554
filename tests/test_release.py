"""The release: what the wheel and the sdist contain, their metadata, the citation and the workflows."""

import email.parser
import re
import subprocess
import sys
import zipfile

import check_release
import pytest
import yaml

import looksam

ROOT = check_release.ROOT


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder of a freshly built wheel and sdist."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    return folder


def test_the_wheel_has_the_package_and_nothing_else(dist):
    [wheel] = dist.glob("*.whl")
    expected = check_release.package_files()
    suffixes = {name.rpartition(".")[2] for name in expected}
    assert suffixes == {"py", "typed", "csv", "html", "css", "js"}  # code, and data that is read at run time
    check_release.check_wheel(wheel, expected)


def test_the_sdist_has_what_a_build_needs(dist):
    [sdist] = dist.glob("*.tar.gz")
    check_release.check_sdist(sdist, check_release.package_files())


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["looksam/a.py", "x.dist-info/licenses/LICENSE"], "looksam/table.csv"),
        (["looksam/a.py", "looksam/table.csv", "tests/b.py", "x.dist-info/licenses/LICENSE"], "tests/b.py"),
        (["looksam/a.py", "looksam/table.csv"], "the licence is missing"),
    ],
)
def test_what_a_wheel_should_not_be_is_found(tmp_path, names, problem):
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        for name in names:
            archive.writestr(name, "")
    with pytest.raises(SystemExit, match=problem):
        check_release.check_wheel(tmp_path / "x.whl", {"looksam/a.py", "looksam/table.csv"})


def test_metadata(dist):
    [wheel] = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.parser.Parser().parsestr(archive.read(name).decode())
    assert metadata["Name"] == "looksam" and metadata["Version"] == looksam.__version__
    assert metadata["Author"] == "looksam contributors" and metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11" and metadata["Summary"] and metadata["Keywords"]
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_one_version_everywhere():
    assert set(check_release.versions().values()) == {looksam.__version__}


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "Apache-2.0"
    assert {"message", "title", "authors"} <= set(citation)
    [paper] = citation["references"]
    assert paper["title"] == "Towards Efficient and Scalable Sharpness-Aware Minimization"
    assert [author["family-names"] for author in paper["authors"]] == ["Liu", "Mai", "Chen", "Hsieh", "You"]


@pytest.mark.parametrize("name", ["test", "release"])
def test_workflows(name):
    """They parse, call targets that exist, and name no host; a release needs one secret."""
    text = (ROOT / f".github/workflows/{name}.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    for job in jobs.values():
        for step in job["steps"]:
            for target in re.findall(r"make (\w+)", step.get("run", "")):
                assert f"\n{target}:" in (ROOT / "Makefile").read_text()
    assert "://" not in text
    assert re.findall(r"secrets\.(\w+)", text) == (["RELEASE_TOKEN"] if name == "release" else [])
