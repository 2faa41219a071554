"""Whether the demo gives the same accuracies on other machines: `looksam compare` under four configurations.

    python benchmarks/demo_agreement.py     # about five minutes, to results/digits/configurations.json

Machines differ in their number of threads and in how XLA compiles matrix products. Sums are then rounded differently,
and a run at the edge of divergence ends elsewhere. Here the demo trains with one and with two threads, each with the
compiler flag of the command line and with YNNPACK turned off, in processes of their own and without stored programs.
The table has the largest difference of a method's mean between configurations, to compare with its standard error.
Needs Linux, for the threads.
"""

import argparse
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile

from looksam.cli.environment import CACHE_SWITCH, YNN_FLAG
from looksam.experiments.comparison import read_results, write_results
from looksam.experiments.engine.statistics import mean_and_standard_error
from looksam.experiments.report.text import lines_text
from looksam.methods import label

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "results/digits/configurations.json"
FLAGS = {"flag of the command line": {}, "without YNNPACK": {"XLA_FLAGS": f"{YNN_FLAG}="}}
THREADS = {"two threads": 2, "one thread": 1}
SHARED = ("version", "recipe", "seeds", "versions")


def demo(threads, variables, arguments):
    """The results of the demo in a process of its own."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    if len(cores) < threads:
        raise RuntimeError(f"this process may run on {len(cores)} cores, and {threads} are needed.")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment = kept | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", CACHE_SWITCH: "false"} | variables
    with tempfile.TemporaryDirectory() as folder:
        looksam = [sys.executable, "-m", "looksam.cli", "compare", "--dtype", "float64", "--quiet", "--rounds", "1"]
        command = ["taskset", "-c", ",".join(map(str, cores)), *looksam, "--out", folder, *arguments]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        return read_results(pathlib.Path(folder) / "results.json")


def measure(arguments):
    """By recipe: what the configurations share, and the accuracies of each method under each of them."""
    merged = {}
    for (threads, count), (flags, variables) in itertools.product(THREADS.items(), FLAGS.items()):
        print(f"{threads}, {flags}", file=sys.stderr, flush=True)
        for name, result in demo(count, variables, arguments).items():
            shared = merged.setdefault(name, {key: result[key] for key in SHARED} | {"methods": {}})
            for row, outcome in result["methods"].items():
                entry = shared["methods"].setdefault(row, {"settings": outcome["settings"], "accuracy": {}})
                entry["accuracy"][f"{threads}, {flags}"] = outcome["accuracy"]
    return merged


def table(results):
    """Mean ± standard error under each configuration, and the largest difference of two means."""
    lines = []
    for name, result in results.items():
        for row, outcome in result["methods"].items():
            pairs = [mean_and_standard_error(values) for values in outcome["accuracy"].values()]
            means = [mean for mean, _ in pairs]
            texts = [f"{mean:.2f} ± {error:.2f}" for mean, error in pairs]
            row_label = label(row, k=outcome["settings"].get("k"))
            lines.append((f"{name}, {row_label}", *texts, f"{max(means) - min(means):.2f}"))
    first = next(iter(next(iter(results.values()))["methods"].values()))
    return lines_text([("", *first["accuracy"], "largest difference"), *lines])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS, help="the file to write")
    known, others = parser.parse_known_args()  # others are those of `looksam compare`, such as --seeds
    results = measure(others)
    write_results(known.json, results)
    print(table(results))


if __name__ == "__main__":
    main()
