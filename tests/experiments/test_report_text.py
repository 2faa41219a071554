"""Tables and sections as text, Markdown and CSV: the exact strings."""

import csv
import io

import numpy as np
import pytest
from report_samples import accuracy_table, sections

from looksam.experiments.report.comparison_report import as_markdown
from looksam.experiments.report.document import Figure, Heatmap, Section, Series, Table, Value
from looksam.experiments.report.text import (
    entry_text,
    section_markdown,
    section_text,
    table_csv,
    table_markdown,
    table_text,
)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Value(97.3512, 0.0583), "97.35 ± 0.06"),
        (Value(97.3512, 0.0), "97.35 ± 0.00"),
        (Value(1.273, unit="×"), "1.27×"),
        (Value(12.04, 0.26, digits=1, unit=" s"), "12.0 ± 0.3 s"),
        (Value(-0.0004), "0.00"),
        (Value(-3.0, digits=0), "-3"),
        (Value(float("nan")), "nan"),
        ("diverged", "diverged"),
        (None, "–"),
    ],
)
def test_entries(entry, text):
    assert entry_text(entry) == text


def test_a_table_in_the_terminal():
    assert (
        table_text(accuracy_table())
        == """\
CIFAR-100, small ResNet

method            accuracy, %  paper, %  relative step time  verdict
base             71.02 ± 0.21      78.9               1.00×  –
SAM              73.48 ± 0.18      80.7               1.93×  better than base
SAM-5            71.90 ± 0.30         –               1.21×  no difference shown
LookSAM-5        73.20 ± 0.25      80.6               1.24×  better than base
Look-LayerSAM-5             –         –              10.50×  not run | no layers"""
    )


def test_a_table_in_markdown():
    assert (
        table_markdown(accuracy_table())
        == """\
**CIFAR-100, small ResNet**

| method | accuracy, % | paper, % | relative step time | verdict |
|---|---:|---:|---:|---|
| base | 71.02 ± 0.21 | 78.9 | 1.00× | – |
| SAM | 73.48 ± 0.18 | 80.7 | 1.93× | better than base |
| SAM-5 | 71.90 ± 0.30 | – | 1.21× | no difference shown |
| LookSAM-5 | 73.20 ± 0.25 | 80.6 | 1.24× | better than base |
| Look-LayerSAM-5 | – | – | 10.50× | not run \\| no layers |"""
    )


def test_a_table_as_csv_keeps_every_digit():
    text = table_csv(accuracy_table())
    assert (
        text
        == """\
method,"accuracy, %","accuracy, %, standard error","paper, %",relative step time [×],verdict
base,71.02,0.21,78.9,1.0,–
SAM,73.481,0.18,80.7,1.93,better than base
SAM-5,71.9,0.3,,1.21,no difference shown
LookSAM-5,73.2,0.25,80.6,1.24,better than base
Look-LayerSAM-5,,,,10.5,not run | no layers
"""
    )
    assert all(len(row) == 6 for row in csv.reader(io.StringIO(text)))


def test_numpy_numbers_are_written_as_numbers():
    table = Table("t", ("a", "b"), [("x", Value(np.float64(0.1), np.float32(0.5)))])
    assert table_csv(table) == 'a,b,"b, standard error"\nx,0.1,0.5\n'


def test_a_table_without_rows():
    empty = Table("nothing yet", ("method", "accuracy"), [])
    assert table_text(empty) == "nothing yet\n\nmethod  accuracy"
    assert table_csv(empty) == "method,accuracy\n"


def test_a_section_in_markdown():
    section = Section(
        "alpha",
        "α",
        "Which α?",
        ["0.7 is best.", "By little."],
        [Table("Accuracy", ("α", "%"), [("0.7", Value(74.5, 0.1))])],
        [Figure("alpha-line", "Accuracy [%]", "α", "%", [Series("ours", [0.7], [74.5])])],
        ["One batch."],
        {"scale": "small", "versions": {"jax": "0.10.2"}},
    )
    expected = """\
## α

Which α?

- 0.7 is best.
- By little.

**Accuracy**

| α | % |
|---|---:|
| 0.7 | 74.50 ± 0.10 |

![Accuracy \\[%\\]](alpha-line.svg)

- One batch.

<sub>scale: small · versions: jax 0.10.2</sub>
"""
    assert section_markdown(section) == expected
    assert section_markdown(section, ".png") == expected.replace("alpha-line.svg", "alpha-line.png")
    assert (
        section_text(section) == "α\n=\n\n0.7 is best.\nBy little.\n\nAccuracy\n\nα               %\n0.7  74.50 ± 0.10"
    )


def test_a_section_of_words_alone():
    assert section_markdown(Section("a", "A", "Why?", ["So."])) == "## A\n\nWhy?\n\n- So.\n"
    assert section_text(sections()[1]).splitlines()[-1] == "g_v changes least over five steps."


def test_the_markdown_of_a_comparison_is_as_it_was():
    outcome = {
        "settings": {"rho": 0.1, "k": 5},
        "time_ratio": [1.1, 1.25, 1.3],
        "accuracy": [90.0, 92.0],
        "gradients_per_step": 1.2,
        "sharpness_train": [0.5],
        "sharpness_test": [0.25, 0.35],
    }
    recipe = {"dataset": "digits", "label_noise": 0.3, "model": "mlp", "optimizer": "sgdm", "learning_rate": 0.05}
    recipe |= {"weight_decay": 0.01}
    assert (
        as_markdown({"recipe": recipe, "seeds": 2, "methods": {"sam_k": outcome}})
        == """\
**digits, 30 % of the training labels random, mlp, sgdm, 2 seeds**

| method | learning rate | weight decay | ρ | α | test accuracy, % | gradients per step | relative step time \
| sharpness, train | test |
|---|---|---|---|---|---|---|---|---|---|
| SAM-5 | 0.05 | 0.01 | 0.1 | – | 91.00 ± 1.00 | 1.2 | 1.25× | 0.5000 | 0.300 ± 0.050 |"""
    )


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="table 't': row 1 has 1 entries for 2 columns"):
        Table("t", ("a", "b"), [("x", None), ("y",)])
    with pytest.raises(ValueError, match="series 's' has 2 of x, 2 of y, 1 of error"):
        Series("s", [1, 2], [3, 4], [0.1])
    with pytest.raises(ValueError, match="heatmap 'h' has 1 rows of \\[3\\] values for 1 y and 2 x"):
        Heatmap("h", "", "", "", [1, 2], [1], [[1, 2, 3]])
