"""How long the command line takes to start: to its help, and to the first training step.

    python benchmarks/startup.py --json results/benchmarks/startup.json
    python benchmarks/startup.py --root OTHER    # another checkout, for a before-and-after comparison

Every measurement is a new process, timed from its start to the moment at which the metrics of the first step of
``looksam train digits`` are on disk: cold with an empty cache of compiled programs, warm with the programs of an
earlier process. ``--k 1`` makes all steps one program, so that the second step, behind which those metrics are written,
compiles nothing. The median and the range are printed. About two minutes on one CPU core.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
TRAIN = ("train", "digits", "--k", "1", "--steps", "2", "--log-every", "1", "--quiet", "--run-dir", "run")
OURS = ("JAX_", "XLA_")  # settings of this shell, which would take the place of the command line's own
POLL_SECONDS = 0.002


class Command:
    """``looksam`` of a checkout, run in a folder of its own."""

    def __init__(self, root, folder):
        self.folder = pathlib.Path(folder)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.environment = kept | {"PYTHONPATH": str(root.resolve()), "XDG_CACHE_HOME": str(self.folder / "cache")}

    def start(self, *words):
        command = [sys.executable, "-m", "looksam.cli", *words]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL)

    def help_seconds(self):
        started = time.perf_counter()
        _wait(self.start("train", "--help"))
        return time.perf_counter() - started

    def first_step_seconds(self):
        metrics = self.folder / "run" / "metrics.jsonl"
        started = time.perf_counter()
        process = self.start(*TRAIN)
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            time.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - started
        _wait(process)
        shutil.rmtree(self.folder / "run")
        return seconds

    def cache_bytes(self):
        return sum(path.stat().st_size for path in (self.folder / "cache").rglob("*-cache"))


def _wait(process):
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(process.args)} ended with code {process.returncode}.")


def measure(root, rounds):
    times = {"help": [], "first step, cold cache": [], "first step, warm cache": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            command = Command(root, folder)
            command.help_seconds()  # brings the files into memory
            times["help"].append(command.help_seconds())
            times["first step, cold cache"].append(command.first_step_seconds())
            times["first step, warm cache"].append(command.first_step_seconds())
            cache_bytes = command.cache_bytes()
    rows = [
        {"what": what, "median": statistics.median(each), "lowest": min(each), "highest": max(each)}
        for what, each in times.items()
    ]
    return {"rounds": rounds, "seconds": rows, "cache_bytes": cache_bytes}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="also write the result to this file")
    arguments = parser.parse_args()
    result = measure(arguments.root, arguments.rounds)
    for row in result["seconds"]:
        print(f"{row['what']:24} {row['median']:6.2f} s  ({row['lowest']:.2f}-{row['highest']:.2f})")
    print(f"compiled programs        {result['cache_bytes'] / 2**10:6.0f} KiB")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
