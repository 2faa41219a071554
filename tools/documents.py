"""Write the tables of README.md and docs/ anew from the measurements stored in results/.

    python tools/documents.py

Each table stands between two comments that name where its numbers come from. Tests hold the documents to this.
"""

import csv
import json
import pathlib
import re
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from rules import markdown  # noqa: E402

from looksam.experiments import EXPERIMENT_NAMES  # noqa: E402
from looksam.experiments.comparison import read_results  # noqa: E402
from looksam.experiments.report.comparison_report import as_text  # noqa: E402


def _stored(path: str) -> Any:
    return json.loads((ROOT / path).read_text())


def trainer_table(rows: list[dict]) -> str:
    lines = [
        "| recipe | input, share of a step | throughput / bare loop | step time, LookSAM-5 / base |",
        "|---|---|---|---|",
    ]
    for row in rows:
        speed, cost = row["images_per_second_to_bare"][1], row["look_sam_5_to_base"][1]
        lines.append(f"| {row['recipe']} | {100 * row['input_share']:.2f} % | {speed:.2f} | {cost:.2f} |")
    return "\n".join(lines)


def startup_table(result: dict) -> str:
    lines = ["| `looksam train digits` | median | range |", "|---|---|---|"]
    for row in result["seconds"]:
        lines.append(f"| {row['what']} | {row['median']:.2f} s | {row['lowest']:.2f}–{row['highest']:.2f} s |")
    return "\n".join(lines)


def scale_table(result: dict) -> str:
    lines = ["| batch | temporaries, MiB | images, MiB | growth of the process, MiB |", "|---|---|---|---|"]
    for row in result["rows"]:
        sizes = " | ".join(f"{row[name] / 2**20:,.0f}" for name in ("temporaries", "images", "grown"))
        lines.append(f"| {row['batch']:,} | {sizes} |")
    return "\n".join(lines)


def experiment(name: str) -> str:
    """The report of an experiment, with its figures where they are seen from docs/."""
    text = (ROOT / "results" / name / "report.md").read_text().strip()
    return re.sub(r"\]\(([\w.-]+\.svg)\)", rf"](../results/{name}/\1)", text)


def both_models() -> str:
    """The rows that the tables of the ResNet and of the ViT share, with what a step costs."""
    resnet, vit = (_rows(f"results/{name}/table-1.csv") for name in ("cifar100", "vit"))
    columns = ("clean labels, test %", "30 % random labels, test %")
    header = ("", "ResNet, clean", "30 % random labels", "ViT, clean", "30 % random labels")
    lines = [f"| {' | '.join([*header, 'relative step time, ViT', 'paper: ViT-B-16'])} |", "|---" * 7 + "|"]
    for ours, theirs in zip(resnet, vit, strict=True):
        scores = [
            f"{float(row[name]):.2f} ± {float(row[f'{name}, standard error']):.2f}"
            for row in (ours, theirs)
            for name in columns
        ]
        paper = theirs["paper: relative step time, ViT-B-16 [×]"]
        times = [f"{float(text):.2f}×" if text else "–" for text in (theirs["relative step time [×]"], paper)]
        name = "base" if ours["method"] != theirs["method"] else ours["method"]
        lines.append(f"| {' | '.join([name, *scores, *times])} |")
    return "\n".join(lines)


def _rows(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader((ROOT / path).read_text().splitlines()))


def tables() -> dict[str, str]:
    """The text between the comments, by the file its numbers are in."""
    comparisons = read_results(ROOT / "results/digits/results.json").values()
    return {
        "results/digits/results.json": "\n".join(f"```\n{as_text(result)}\n```" for result in comparisons),
        "results/benchmarks/trainer.json": trainer_table(_stored("results/benchmarks/trainer.json")),
        "results/benchmarks/startup.json": startup_table(_stored("results/benchmarks/startup.json")),
        "results/benchmarks/scale.json": scale_table(_stored("results/benchmarks/scale.json")),
        "results/benchmarks/rules.json": markdown(_stored("results/benchmarks/rules.json")),
        "results/benchmarks/torch_rules.json": markdown(_stored("results/benchmarks/torch_rules.json")),
        "results/vit/table-1.csv": both_models(),
        **{f"results/{name}/report.md": experiment(name) for name in EXPERIMENT_NAMES},
    }


def filled(text: str) -> str:
    """The document with every table as stored."""
    for source, table in tables().items():
        block = re.compile(rf"(<!-- from {re.escape(source)} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        text = block.sub(lambda match, table=table: match[1] + table + match[2], text)
    return text


GUIDES = ("maths", "pytorch", "results", "scale", "training")
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in GUIDES)]

if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text()))
