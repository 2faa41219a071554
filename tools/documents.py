"""Write the tables of README.md and docs/ anew from the measurements stored in results/.

    python tools/documents.py

Each table stands between two comments that name where its numbers come from. Tests hold the documents to this.
"""

import functools
import itertools
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

from looksam.experiments import EXPERIMENT_NAMES, MEDIUM_NAMES
from looksam.experiments.comparison import read_results
from looksam.experiments.report import bench_report
from looksam.experiments.report.comparison_report import as_text, mean_and_error
from looksam.experiments.report.text import gradients_text, lines_markdown
from looksam.methods import OPTIMIZERS, label

ROOT = pathlib.Path(__file__).parent.parent
RULES = ("results/benchmarks/rules.json", "results/benchmarks/torch_rules.json")
THROUGHPUT = "results/benchmarks/throughput.json"
CONVOLUTIONS = "results/benchmarks/convolutions.json"
MEMORY = "results/benchmarks/torch_memory.json"
ONE_PROCESS = "results/benchmarks/one_process.json"
PICTURED = (*RULES, THROUGHPUT)
MEDIUM = [f"medium/{name}" for name in MEDIUM_NAMES]
EXPERIMENTS = [f"results/{name}" for name in ("summary", *MEDIUM, *EXPERIMENT_NAMES)]  # the folders of their reports


def _benchmark(
    path: str,
    as_text: Callable[[list[dict[str, Any]]], str],
    read: Callable[[pathlib.Path], list[dict[str, Any]]] = bench_report.read,
) -> str:
    """What a document says about a measurement, or how to make it if it is missing."""
    if not (ROOT / path).exists():
        return f"*Not measured yet: `python benchmarks/{pathlib.Path(path).stem}.py`.*"
    return as_text(read(ROOT / path))


def _picture(path: str) -> str:
    return path.removesuffix(".json") + ".svg"


def _shown(picture: str, results: list[dict[str, Any]]) -> str:
    """The picture, as seen from docs/."""
    models = ", ".join(dict.fromkeys(result["name"] for result in results))
    return f"![Relative step times: {models}](../{picture})"


def draw_pictures(folder: pathlib.Path = ROOT) -> list[pathlib.Path]:
    """Draws the pictures of the benchmarks that were measured, at their places in ``folder``."""
    drawn = []
    for source in PICTURED:
        if (ROOT / source).exists():
            drawn.append(folder / _picture(source))
            bench_report.draw(bench_report.read(ROOT / source), drawn[-1])
    return drawn


def _stored(path: str | pathlib.Path) -> Any:
    return json.loads((ROOT / path).read_text())


def digits_table(results: dict[str, dict[str, Any]]) -> str:
    """The demo in short: cost of each method with the first settings, accuracy with all of them."""
    first, tuned = results.values()
    lines = []
    for method, outcome in first["methods"].items():
        cost = gradients_text(outcome["gradients_per_step"]), f"{outcome['time_ratio'][1]:.2f}×"
        scores = [mean_and_error(result["methods"][method]["accuracy"], 2) for result in (first, tuned)]
        lines.append((label(method, k=outcome["settings"].get("k")), *cost, *scores))
    header = ("method", "gradients per step", "relative step time", "test %", "test %, weight decay tuned too")
    return lines_markdown([header, *lines], left=(0,))


def trainer_table(rows: list[dict]) -> str:
    lines = [
        "| recipe | input, share of a step | throughput / bare loop | step time, LookSAM-5 / base |",
        "|---|---|---|---|",
    ]
    for row in rows:
        speed, cost = _spread(*row["images_per_second_to_bare"]), _spread(*row["look_sam_5_to_base"])
        lines.append(f"| {row['recipe']} | {100 * row['input_share']:.2f} % | {speed} | {cost} |")
    return "\n".join(lines)


def startup_table(result: dict) -> str:
    lines = ["| `looksam train digits` | median | range |", "|---|---|---|"]
    for row in result["seconds"]:
        lines.append(f"| {row['what']} | {row['median']:.2f} s | {row['lowest']:.2f}–{row['highest']:.2f} s |")
    return "\n".join(lines)


def throughput_table(results: list[dict]) -> str:
    """Images per second relative to PyTorch: one line per model and per way to run it in JAX."""
    lines: list[tuple[str, ...]] = []
    for result in results:
        torch, *rows = result["rows"]
        for row in rows:
            low, ratio, high = sorted(1 / quartile for quartile in row["wall"])
            speeds = f"{row['images_per_second']:,.0f}", f"{torch['images_per_second']:,.0f}"
            name = row["variant"] if row["form"] != "torch" else f"PyTorch, {row['variant']}"
            lines.append((result["name"], name, *speeds, f"{ratio:.2f}×", f"{low:.2f}–{high:.2f}"))
    header = ("model", "configuration", "images/s", "PyTorch, images/s", "relative to PyTorch", "middle half")
    return lines_markdown([header, *lines], left=(0, 1))


def convolutions_table(rows: list[dict]) -> str:
    """Times relative to our convolution outside of control flow, the median and the middle half."""
    forms = list(rows[0]["wall"])
    lines = [(row["layer"], *(_spread(*row["wall"][form]) for form in forms)) for row in rows]
    return lines_markdown([("layer", *forms), *lines], left=(0,))


def one_process_table(result: dict) -> str:
    """Step times relative to the base optimizer, the median and the middle half: one line per method."""
    columns = [f"{row['model']}, {OPTIMIZERS[row['optimizer']]}" for row in result["rows"]]
    names = [name for name in result["rows"][0]["ratios"] if name != "base"]
    lines = [(label(name), *(_spread(*row["ratios"][name]) for row in result["rows"])) for name in names]
    return lines_markdown([("method", *columns), *lines], left=(0,))


def _spread(low: float, median: float, high: float) -> str:
    return "1" if low == median == high == 1 else f"{median:.2f}× ({low:.2f}–{high:.2f})"


def memory_table(result: dict) -> str:
    """The peak with each base optimizer, in copies of the parameters, and how far it is above that optimizer's."""
    peaks: dict[tuple[str, str], dict[str, dict]] = {}
    for row in result["rows"]:
        peaks.setdefault((row["method"], row["library"]), {})[row["optimizer"]] = row
    optimizers = {"sgdm": "SGD with momentum", "adamw": "AdamW"}
    lines = [
        (method, library, *(f"{own[name]['copies']:.2f} ({own[name]['extra']:+.2f})" for name in optimizers))
        for (method, library), own in peaks.items()
    ]
    return lines_markdown([("method", "library", *optimizers.values()), *lines], left=(0, 1))


def scale_table(result: dict) -> str:
    lines = ["| batch | temporaries, MiB | images, MiB | growth of the process, MiB |", "|---|---|---|---|"]
    for row in result["rows"]:
        sizes = " | ".join(f"{row[name] / 2**20:,.0f}" for name in ("temporaries", "images", "grown"))
        lines.append(f"| {row['batch']:,} | {sizes} |")
    return "\n".join(lines)


def experiment(folder: str) -> str:
    """The report of an experiment, with its figures where they are seen from docs/; or how to make it."""
    path = ROOT / folder / "report.md"
    if not path.exists():
        return f"*Not complete yet: `looksam reproduce {path.parent.name} --scale medium`.*"
    return re.sub(r"\]\(([\w.-]+\.svg)\)", rf"](../{folder}/\1)", path.read_text().strip())


def first_table(folder: str) -> str:
    """The first table of an experiment's report."""
    path = ROOT / folder / "report.md"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    return "\n".join(itertools.takewhile(lambda line: line.startswith("|"), rows))


def tables() -> dict[str, str]:
    """The text between the comments, by the file its numbers are in."""
    digits = read_results(ROOT / "results/digits/results.json")
    return {
        "results/digits/results.json": digits_table(digits),
        "results/digits/results.json, in full": "\n".join(f"```\n{as_text(result)}\n```" for result in digits.values()),
        "results/benchmarks/trainer.json": trainer_table(_stored("results/benchmarks/trainer.json")),
        "results/benchmarks/startup.json": startup_table(_stored("results/benchmarks/startup.json")),
        CONVOLUTIONS: _benchmark(CONVOLUTIONS, convolutions_table, _stored),
        MEMORY: _benchmark(MEMORY, memory_table, _stored),
        ONE_PROCESS: _benchmark(ONE_PROCESS, one_process_table, _stored),
        "results/benchmarks/scale.json": scale_table(_stored("results/benchmarks/scale.json")),
        **{source: _benchmark(source, bench_report.medians_markdown) for source in RULES},
        THROUGHPUT: _benchmark(THROUGHPUT, throughput_table),
        **{_picture(source): _benchmark(source, functools.partial(_shown, _picture(source))) for source in PICTURED},
        "results/medium/rivals/table-1.csv": first_table("results/medium/rivals"),
        **{f"{folder}/report.md": experiment(folder) for folder in EXPERIMENTS},
    }


def filled(text: str) -> str:
    """The document with every table as stored."""
    for source, table in tables().items():
        block = re.compile(rf"(<!-- from {re.escape(source)} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = block.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
    return text


GUIDES = ("benchmarks", "maths", "pytorch", "results", "scale", "training")
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in GUIDES)]

if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text()))
    draw_pictures()
