"""The committed results: every report follows from the stored runs, and their page opens in a browser."""

import pathlib

import pytest
from browser import Browser

from looksam.experiments.registry import EXPERIMENTS
from looksam.experiments.report.figures import draw
from looksam.experiments.report.page import page
from looksam.experiments.store import Store
from looksam.experiments.write import INTRO, TIMINGS_OF, TITLE, texts, with_source

RESULTS = pathlib.Path(__file__).parents[2] / "results"
SEEDS = 5


@pytest.fixture(scope="module")
def sections():
    store = Store(RESULTS / "cells")
    return {name: with_source(experiment, store, SEEDS) for name, experiment in EXPERIMENTS.items()}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_reports_and_tables_follow_from_the_stored_runs(name, sections):
    for file, text in texts(sections[name]).items():
        assert (RESULTS / name / file).read_text() == text, f"{name}/{file}: run `looksam reproduce {name}`"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_follow_from_the_stored_runs(name, sections, tmp_path):
    for figure in sections[name].figures:
        svg, _ = draw(figure, tmp_path)
        assert (RESULTS / name / svg.name).read_bytes() == svg.read_bytes()


def test_the_stored_runs_are_those_that_are_reported():
    store = Store(RESULTS / "cells")
    tasks = [task for e in EXPERIMENTS.values() for stage in e.stages(store, SEEDS) for task in stage]
    timings = {f"timing-{name}" for names in TIMINGS_OF.values() for name in names}
    assert {path.stem for path in store.folder.glob("*.json")} == {task.key for task in tasks} | timings
    commits = {record["commit"] for record in map(store.get, tasks)}
    commits |= {store.measurement(name)["commit"] for name in timings}
    assert all(len(commit) == 12 and commit.isalnum() for commit in commits)  # no code that was not committed


def test_the_page_of_all_experiments_in_a_browser(sections, tmp_path):
    window = Browser(tmp_path)
    try:
        path = tmp_path / "report.html"
        path.write_text(page(list(sections.values()), TITLE, INTRO), encoding="utf-8")
        window.visit(path)
        heights = window.run("return [...document.querySelectorAll('main > section')].map(s => [s.id, s.offsetHeight])")
        assert [name for name, _ in heights] == list(EXPERIMENTS)
        assert all(height > 200 for _, height in heights)
        assert window.errors() == []
    finally:
        window.close()
