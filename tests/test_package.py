"""The package as a user meets it: what is imported, which names are public, and documents that stay up to date."""

import json
import pathlib
import re
import statistics
import subprocess
import sys

import pytest

import looksam

ROOT = pathlib.Path(__file__).parent.parent


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_import_loads_no_framework():
    result = run("import looksam, sys; print([m for m in ('jax', 'optax', 'torch', 'flax') if m in sys.modules])")
    assert result.stdout == "[]\n", result.stderr


@pytest.mark.parametrize("missing", ["jax", "optax"])
def test_a_missing_extra_names_the_install_command(missing):
    result = run(f"import sys; sys.modules['{missing}'] = None; import looksam; looksam.as_optimizer")
    assert f"needs {missing}, which is not installed: pip install 'looksam[jax]'" in result.stderr


def test_public_names():
    assert looksam.__all__ == sorted(looksam.__all__)
    for name in looksam.__all__:
        assert getattr(looksam, name).__doc__
        assert name in dir(looksam)
    with pytest.raises(AttributeError, match="'lok_sam'; it has"):
        looksam.lok_sam  # noqa: B018


def test_every_rule_is_described_exported_and_has_a_reference():
    from oracle import REFERENCES

    from looksam import rules
    from looksam.methods import METHODS

    names = sorted(method.name for method in METHODS.values() if method.is_rule)
    assert names == rules.family.__all__ == sorted(REFERENCES)
    assert set(names) < set(looksam.__all__) and set(names) < set(rules.__all__)


def test_formulas_point_at_their_code():
    text = (ROOT / "docs/maths.md").read_text()
    rows = re.findall(r"^\| \((\d+)\) .*`(\w+\.py)` \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    for number, file in rows:
        assert f"# ({number})" in (ROOT / "looksam/rules" / file).read_text()
    tagged = sum(len(re.findall(r"# \(\d+\)", path.read_text())) for path in (ROOT / "looksam/rules").glob("*.py"))
    assert tagged == len(rows) > 0


def test_pictures_of_benchmarks_are_the_stored_measurements(tmp_path):
    import documents

    (tmp_path / "results/benchmarks").mkdir(parents=True)
    for path in documents.draw_pictures(tmp_path):
        stored = ROOT / path.relative_to(tmp_path)
        assert path.read_text() == stored.read_text(), f"{stored.name} is out of date: python tools/documents.py"


def test_every_stored_measurement_is_in_a_document():
    import documents

    text = "".join(document.read_text() for document in documents.DOCUMENTS)
    assert [source for source in documents.tables() if f"<!-- from {source} -->" not in text] == []


def test_tables_in_documents_are_the_stored_measurements():
    import documents

    for document in documents.DOCUMENTS:
        text = document.read_text()
        assert "<!-- from results/" in text
        assert text == documents.filled(text), f"{document.name} is out of date: python tools/documents.py"


def test_an_empty_block_is_filled_and_what_follows_it_is_kept():
    import documents

    source = "results/benchmarks/scale.json"
    following = "\n\nA sentence.\n\n<!-- from elsewhere -->\n\n<!-- end -->\n"
    text = documents.filled(f"<!-- from {source} -->\n<!-- end -->{following}")
    assert text == f"<!-- from {source} -->\n{documents.tables()[source]}\n<!-- end -->{following}"


def test_versions_are_pinned_without_hosts():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line), line


def test_the_demo_gives_the_same_accuracies_on_any_number_of_threads_and_with_any_compiler_flags():
    results = json.loads((ROOT / "results/digits/results.json").read_text())
    for name, stored in json.loads((ROOT / "results/digits/configurations.json").read_text()).items():
        for method, outcome in stored["methods"].items():
            shown = results[name]["methods"][method]
            assert outcome["settings"] == shown["settings"] and len(outcome["accuracy"]) == 4
            error = statistics.stdev(shown["accuracy"]) / len(shown["accuracy"]) ** 0.5
            means = [statistics.mean(values) for values in (shown["accuracy"], *outcome["accuracy"].values())]
            assert max(means) - min(means) < error


def test_the_selected_digits_settings_are_the_best_of_the_stored_tuning():
    from looksam.trainer.recipes.small import DIGITS_SELECTED

    for name, tuning in json.loads((ROOT / "results/digits/tuning.json").read_text()).items():
        assert set(tuning["methods"]) == set(DIGITS_SELECTED[name])
        for method, outcome in tuning["methods"].items():
            selected, grid = outcome["selected"], outcome["grid"]
            means = [sum(scores) / len(scores) for scores in outcome["accuracy"]]
            assert DIGITS_SELECTED[name][method] == selected == grid[means.index(max(means))]
            searched = {"learning_rate", "weight_decay", "rho", "alpha"} & selected.keys()
            for setting in searched:  # inside what was tried, by factors of 2
                near = [tried[setting] / selected[setting] for tried in grid]
                assert any(0.4 < ratio < 1 for ratio in near) and any(1 < ratio < 2.5 for ratio in near)
