"""The committed results: every report follows from the stored runs, and their page opens in a browser."""

import json
import pathlib

import pytest
from browser import Browser

from looksam.experiments import (
    EXPERIMENT_NAMES,
    EXPERIMENTS,
    MEDIUM_EXPERIMENTS,
    MEDIUM_NAMES,
    medium_plan,
    medium_scale,
)
from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.overview import overview
from looksam.experiments.report.figures import draw
from looksam.experiments.report.page import page
from looksam.experiments.report.text import section_markdown
from looksam.experiments.reproduction import (
    INTRO,
    SUMMARY,
    TITLE,
    is_reportable,
    sourced_section,
    stored_sections,
    texts,
)
from looksam.trainer.recipe import Recipe

RESULTS = pathlib.Path(__file__).parents[2] / "results"
SEEDS = 5


@pytest.fixture(scope="module")
def sections():
    store = Store(RESULTS / "runs")
    return {name: sourced_section(experiment, store, SEEDS) for name, experiment in EXPERIMENTS.items()}


@pytest.fixture(scope="module")
def stored(sections):
    """By folder: the section that was written there; at medium scale None where runs are missing."""
    store = Store(RESULTS / "medium" / "runs")
    medium = {
        f"medium/{name}": sourced_section(experiment, store, SEEDS, "medium")
        if is_reportable(experiment, store, SEEDS)
        else None
        for name, experiment in MEDIUM_EXPERIMENTS.items()
    }
    return sections | medium


FOLDERS = [*EXPERIMENT_NAMES, *(f"medium/{name}" for name in MEDIUM_NAMES)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_reports_and_tables_follow_from_the_stored_runs(folder, stored):
    if stored[folder] is None:
        assert not (RESULTS / folder).exists()
        return
    for file, text in texts(stored[folder]).items():
        assert (RESULTS / folder / file).read_text() == text, f"{folder}/{file}: run `looksam reproduce --report-only`"


@pytest.mark.parametrize("folder", FOLDERS)
def test_figures_follow_from_the_stored_runs(folder, stored, tmp_path):
    for figure in stored[folder].figures if stored[folder] else ():
        svg, _ = draw(figure, tmp_path)
        assert (RESULTS / folder / svg.name).read_bytes() == svg.read_bytes()


def test_the_stored_runs_are_those_that_are_reported():
    store = Store(RESULTS / "runs")
    runs = [run for e in EXPERIMENTS.values() for stage in e.stages(store, SEEDS) for run in stage]
    timings = {f"timing-{name}" for e in EXPERIMENTS.values() for name in e.timings}
    assert {path.stem for path in store.folder.glob("*.json")} == {run.key for run in runs} | timings
    commits = {record["commit"] for record in map(store.get, runs)}
    commits |= {store.measurement(name)["commit"] for name in timings}
    assert all(len(commit) == 12 and commit.isalnum() for commit in commits)  # no code that was not committed


def test_the_summary_follows_from_the_stored_runs():
    for file, text in texts(overview(stored_sections(RESULTS, SEEDS))).items():
        assert (RESULTS / SUMMARY / file).read_text() == text, f"{SUMMARY}/{file}: run `looksam reproduce --all`"


def test_the_plan_of_the_medium_scale_is_that_of_its_recipes():
    assert (RESULTS / "medium" / "plan.md").read_text() == section_markdown(medium_plan.section())


def test_the_stored_runs_of_the_medium_scale_are_its_own():
    """They may be fewer than there are to train, and none is of other settings."""
    store = Store(RESULTS / "medium" / "runs")
    stages = [stage for e in MEDIUM_EXPERIMENTS.values() for stage in e.stages(store, medium_scale.SEEDS)]
    known = {run.key for stage in stages for run in stage}
    timings = {f"timing-{name}" for e in MEDIUM_EXPERIMENTS.values() for name in e.timings}
    assert {path.stem for path in store.folder.glob("*.json")} <= known | timings
    found = [store.get(run) for stage in stages for run in stage if run in store]
    assert all(len(record["commit"]) == 12 and record["commit"].isalnum() for record in found)


def test_stored_files_are_named_by_their_own_settings():
    for path in [*(RESULTS / "runs").glob("*.json"), *(RESULTS / "medium" / "runs").glob("*.json")]:
        content = json.loads(path.read_text())
        if "recipe" in content:
            assert Run(content["kind"], Recipe(**content["recipe"])).key == path.stem


def test_the_page_of_all_experiments_in_a_browser(sections, tmp_path):
    window = Browser(tmp_path)
    try:
        path = tmp_path / "report.html"
        path.write_text(page(list(sections.values()), TITLE, INTRO), encoding="utf-8")
        window.visit(path)
        heights = window.run("return [...document.querySelectorAll('main > section')].map(s => [s.id, s.offsetHeight])")
        assert [name for name, _ in heights] == list(EXPERIMENT_NAMES)
        assert all(height > 200 for _, height in heights)
        assert window.errors() == []
    finally:
        window.close()
