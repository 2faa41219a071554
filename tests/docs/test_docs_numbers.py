"""The numbers in hand-written sentences of README.md and docs/ are those of the stored results.

The tables of these pages are generated, and tested in tests/test_package.py.
"""

import csv
import json
import math
import statistics

import pages
import pytest

NOISE = {"resnet": "ResNet-8, SGD-M, 40 % random labels", "vit": "Small ViT, AdamW, 40 % random labels"}
CLEAN = {"resnet": "ResNet-8, SGD-M, clean labels", "vit": "Small ViT, AdamW, clean labels"}


def table(path):
    """The lines of a stored table, by their first column."""
    lines = csv.DictReader((pages.ROOT / "results" / path).read_text().splitlines())
    return {next(iter(line.values())): line for line in lines}


def gain(lines, method, column, base="base"):
    """How far a method is above the base, in points."""
    return float(lines[method][column]) - float(lines[base][column])


def confirmed():
    lines = table("medium/confirm/table-1.csv").values()
    gains, p, times = ([float(line[name]) for line in lines] for name in ("difference", "p", "time [×]"))
    one_gain, one_time = {f"{value:.1f}" for value in gains}, {f"{value:.2f}" for value in times}
    assert len(one_gain) == len(one_time) == 1  # to the digits of the sentence
    return {"gain": one_gain.pop(), "time": one_time.pop(), "p": " and ".join(f"{value:.4f}" for value in p)}


def further_seeds():
    lines = csv.DictReader((pages.ROOT / "results/medium/confirm/table-2.csv").read_text().splitlines())
    by_row = {(line["model"], line["method"]): line for line in lines}
    gains = {row: float(line["difference"]) for row, line in by_row.items()}
    resnet, vit = (name.removesuffix(", 40 % random labels") for name in NOISE.values())
    (gain,) = {f"{gains[resnet, name]:.1f}" for name in ("SAM", "SAM-5")}
    assert all(float(by_row[vit, name]["p"]) > 0.05 for name in ("SAM", "SAM-5", "LookSAM-5"))
    assert abs(gains[resnet, "LookSAM-5"]) < 0.1 < -gains[vit, "LookSAM-5"]
    behind = gains[resnet, "SAM-5"] - gains[resnet, "LookSAM-5"]
    return {"gain": gain, "behind": f"{behind:.1f}", "p": f"{float(by_row[vit, 'LookSAM-5']['p']):.2f}"}


def reuse():
    lines = csv.DictReader((pages.ROOT / "results/medium/confirm/table-3.csv").read_text().splitlines())
    resnet, vit = (name.removesuffix(", 40 % random labels") for name in NOISE.values())
    found = {(line["model"], line["method"].partition(", ")[2]): line for line in lines}
    assert float(found[vit, "α = 0.1"]["p"]) > 0.5  # level with SAM-5
    return {
        "small": f"{-float(found[resnet, 'α = 0.1']['difference']):.1f}",
        "large": f"{-float(found[vit, 'α = 0.3']['difference']):.1f}",
        "barely": f"{float(found[resnet, 'α = 0.3']['test %']):.1f} %",
    }


def small_vit():
    lines = table("vit/table-1.csv")
    found = {}
    for labels, column in (("clean", "clean labels, test %"), ("noise", "30 % random labels, test %")):
        sam, look, sam_5 = (gain(lines, name, column, "AdamW") for name in ("SAM", "LookSAM-5", "SAM-5"))
        assert sam_5 / sam < 0.2
        found |= {labels: f"{sam:.1f}", f"look_{labels}": f"{look:.1f}", f"share_{labels}": f"{100 * look / sam:.0f} %"}
    return found


@pytest.mark.parametrize(
    ("page", "sentence", "numbers"),
    [
        ("README.md", "it gains {gain} points over the base on each model (p = {p}), at {time} times", confirmed),
        ("docs/choosing.md", "{gain} points on each model, at {time} gradients per step, confirmed", confirmed),
        ("docs/results.md", "It gains {gain} points on each model, significantly (p = {p})", confirmed),
        (
            "README.md",
            "SAM and SAM-5 throughout gain {gain} points on the ResNet and nothing significant",
            further_seeds,
        ),
        ("docs/choosing.md", "throughout gain {gain} points on the ResNet, significantly", further_seeds),
        ("docs/results.md", "On the ResNet SAM and SAM-5 gain {gain} points each, significantly", further_seeds),
        ("docs/results.md", "it is {behind} points below SAM-5, significantly", further_seeds),
        ("docs/results.md", "a point below AdamW (p = {p})", further_seeds),
        ("docs/results.md", "With α = 0.1 it is {small} points below SAM-5 on the ResNet, significantly", reuse),
        ("docs/results.md", "barely trains on the ResNet ({barely}), and loses {large} points on the ViT", reuse),
        ("docs/choosing.md", "α = 0.1 loses {small} points on the ResNet-8, and α = 0.3 loses {large} on", reuse),
        ("README.md", "keeps {share_clean} of SAM's gain with clean labels ({clean} points) and", small_vit),
        ("README.md", "and {share_noise} with noisy ones ({noise}), and SAM-5 a fifth or less", small_vit),
        ("docs/choosing.md", "`sam` {clean} points with clean labels and {noise} with noisy ones", small_vit),
        ("docs/choosing.md", "`look_sam` {look_clean} and {look_noise}, at 1.2", small_vit),
    ],
)
def test_sentences_quote_the_stored_numbers(page, sentence, numbers):
    text = " ".join((pages.ROOT / page).read_text().split())
    assert sentence.format(**numbers()) in text


def test_what_the_readme_says_of_the_rivals():
    lines = table("medium/rivals/table-1.csv")
    text = " ".join((pages.ROOT / "README.md").read_text().split())
    assert f"on the ViT it loses {-gain(lines, 'MSAM', CLEAN['vit']):.1f}." in text
    late = {model: gain(lines, "LookSAM-5, last 20 %", column) for model, column in CLEAN.items()}
    assert f"gains nothing on the ResNet and loses {-late['vit']:.1f} points on the ViT" in text
    assert -0.1 < late["resnet"] <= 0
    largest = max(abs(gain(lines, "LookSAM-5", column)) for column in CLEAN.values())
    assert f"LookSAM-5 throughout is within {math.ceil(10 * largest) / 10} points of the base" in text
    methods = [name for name in lines if not name.startswith("base")]
    above = [(name, model) for name in methods for model in CLEAN if gain(lines, name, CLEAN[model]) > 1]
    assert above == [("MSAM", "resnet")]
    longer = gain(lines, "base, 2 × the epochs", CLEAN["resnet"])
    assert "about as much as training twice as long" in text
    assert abs(gain(lines, "MSAM", CLEAN["resnet"]) - longer) < 0.5


def test_what_the_readme_says_of_the_demo():
    plain, tuned = (
        {name: outcome["accuracy"] for name, outcome in result["methods"].items()}
        for result in json.loads((pages.ROOT / "results/digits/results.json").read_text()).values()
    )
    means = [{name: statistics.mean(values) for name, values in scores.items()} for scores in (plain, tuned)]
    share, ahead, kept = (
        (means[0]["look_sam"] - means[0]["base"]) / (means[0]["sam"] - means[0]["base"]),
        means[1]["sam"] - means[1]["base"],
        means[1]["look_sam"] - means[1]["base"],
    )
    text = " ".join((pages.ROOT / "README.md").read_text().split())
    assert "LookSAM-5 keeps nine tenths of SAM's gain, unless" in text and round(10 * share) == 9
    assert "SAM stays two points ahead, and LookSAM-5 gains nothing" in text
    assert round(ahead) == 2 and kept < statistics.stdev(tuned["base"]) / len(tuned["base"]) ** 0.5
