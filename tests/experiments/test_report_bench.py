"""The report of a measurement of ``looksam.bench``: tables, files and the picture."""

import json
import re

import pytest

from looksam.experiments.report import bench_report
from looksam.trainer.recipe import Recipe


def row(form, row, method, ratio, variant="", **facts):
    return {
        **{"name": f"{form}/{row} {variant}".strip(), "method": method, "row": row, "form": form, "variant": variant},
        **{"wall": [ratio - 0.1, ratio, ratio + 0.1], "cpu": [ratio] * 3, "milliseconds": 10 * ratio},
        **{"relative_to": f"{form}/base", "environment": {}, "images_per_second": 800 / ratio, **facts},
    }


@pytest.fixture
def result():
    rows = [
        row("static", "base", "base", 1.0, gradients=1.0, kept_copies=0.0, temporary_copies=2.0),
        row("static", "sam", "SAM", 2.1, gradients=2.0, kept_copies=0.0, temporary_copies=3.0),
        row("static", "look_sam", "LookSAM-5", 1.2, "half", gradients=1.2, kept_copies=0.5, temporary_copies=3.0),
        row("torch", "base", "base", 1.0, gradients=1.0),
        row("pytorch_optimizer", "sam", "SAM", 2.3, gradients=2.0),
    ]
    environment = {"cpu": "abacus", "cores": 2, "versions": {"jax": "0.1"}, "variables": {"XLA_FLAGS": "--fast"}}
    shared = {"version": 1, "name": "digits", "recipe": Recipe(batch_size=8).to_dict(), "rounds": 3, "sets": 2}
    return shared | {"bases": 3, "rows": rows, "environment": environment}


def test_text_and_markdown(result):
    text = bench_report.as_text(result)
    assert text.startswith("digits, SGD-M, batch size 8\n\nmethod     by ")
    line = r"^LookSAM-5  JAX, half +1\.2 +1\.20× +1\.10–1\.30 +1\.20× +12 +667 +0\.50 +3\.00$"
    assert re.search(line, text, re.MULTILINE)
    assert "abacus, 2 cores; jax 0.1, XLA_FLAGS=--fast\nmedians over 6 interleaved rounds" in text
    markdown = bench_report.as_markdown(result)
    assert "| SAM | pytorch_optimizer | 2.0 | 2.30× | 2.20–2.40 | 2.30× | 23 | 348 | – | – |" in markdown


def test_medians_of_several_measurements(result):
    without = result | {"name": "other", "rows": [row for row in result["rows"] if row["row"] != "sam"]}
    lines = bench_report.medians_markdown([result, without]).splitlines()
    assert lines[0] == "| method | by | gradients per step | digits, SGD-M | other, SGD-M |"
    assert "| SAM | JAX | 2.0 | 2.10 | – |" in lines
    assert "| LookSAM-5 | JAX, half | 1.2 | 1.20 | 1.20 |" in lines


def test_files_are_the_same_every_time(result, tmp_path):
    for folder in ("a", "b"):
        bench_report.write([result, result], tmp_path / folder / "rules.json")
    svg = (tmp_path / "a/rules.svg").read_text()
    assert svg == (tmp_path / "b/rules.svg").read_text()
    assert svg.count("LookSAM-5, JAX, half") == 2 and "| marks the gradients per step" in svg
    assert bench_report.read(tmp_path / "a/rules.json") == json.loads(json.dumps([result, result]))


def test_another_format_is_refused(result, tmp_path):
    path = tmp_path / "rules.json"
    path.write_text(json.dumps([result | {"version": 99}]))
    with pytest.raises(ValueError, match="rules.json has format version 99; this looksam reads 1: measure it again"):
        bench_report.read(path)
